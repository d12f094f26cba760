//! Tests `bottle fs`: files of a workspace, in bottles of the fake backend and in a sandbox.

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;
use serde_json::Value;

use crate::asking::running_bottle;
use crate::home::{home, run, snapshot, transcripts};

/// Runs `bottle fs` with an input, and returns its result as JSON.
fn json(home: &TestHome, arguments: &[&str], input: &str) -> Result<Value> {
    let arguments = [&["fs"], arguments, &["--json"]].concat();
    home.program(arguments)?.input(input).run()?.expect_code(0).json()
}

const DIFF: &str = "diff --git a/src/main.rs b/src/main.rs\n--- a/src/main.rs\n+++ b/src/main.rs\n@@ -1,2 +1,2 @@\n \
                    fn main() {\n-    old();\n+    new();\ndiff --git a/notes b/notes\nnew file mode 100644\n\
                    --- /dev/null\n+++ b/notes\n@@ -0,0 +1 @@\n+remember\n";

#[test]
fn files_are_listed_written_patched_and_removed() -> Result<()> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    let written = json(&home, &["write", "one", "src/main.rs"], "fn main() {\n    old();\n}\n")?;
    ensure!(written["created"] == true && written["size_bytes"] == 25, "{written}");
    let checked = json(&home, &["patch", "one", "--check"], DIFF)?;
    ensure!(checked["applied"] == false && checked["files"][1]["change"] == "created", "{checked}");
    let patched = json(&home, &["patch", "one"], DIFF)?;
    ensure!(patched["applied"] == true && patched["files"][0]["places"] == 1, "{patched}");
    let again = home.program(["fs", "patch", "one"])?.input(DIFF).run()?.expect_code(1);
    ensure!(again.stderr.contains("hunk 1 (line 1) does not match the file"), "{}", again.stderr);
    let binary = home.program(["fs", "write", "one", "data"])?.input("a\u{1b}[31m\n").run()?.expect_code(0);
    ensure!(binary.stderr.contains("wrote 7 bytes"), "{}", binary.stderr);
    snapshot!(transcripts(
        &home,
        &[
            &["fs", "ls", "one"],
            &["fs", "ls", "one", "-r"],
            &["fs", "ls", "one", "-r", "--limit", "2"],
            &["fs", "ls", "one", "-r", "--after", "notes", "--json", "--limit", "1"],
            &["fs", "ls", "one", "src", "--long"],
            &["fs", "stat", "one", "/workspace/src/main.rs"],
            &["fs", "stat", "one", "src", "--json"],
            &["fs", "read", "one", "src/main.rs"],
            &["fs", "read", "one", "src/main.rs", "--offset", "3", "--max", "4", "--json"],
            &["fs", "patch", "one", "src/main.rs", "--search", "new()", "--replace", "newer()"],
            &["fs", "grep", "one", "newer|remember"],
            &["fs", "grep", "one", "n", "--include", "*.rs", "--limit", "1"],
            &["fs", "grep", "one", "NEWER()", "-iF", "--json"],
            &["fs", "glob", "one", "*.rs"],
            &["fs", "glob", "one", "*", "src", "--json"],
            &["fs", "rm", "one", "src"],
            &["fs", "rm", "one", "src", "--recursive", "--json"],
            &["fs", "ls", "one"],
        ],
    )?);
    Ok(())
}

#[test]
fn explains_what_cannot_be_done_with_files() -> Result<()> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    let _ = json(&home, &["write", "one", "twice"], "a a\n")?;
    snapshot!(transcripts(
        &home,
        &[
            &["fs", "read", "one", "absent"],
            &["fs", "read", "one", "/etc/passwd"],
            &["fs", "read", "one", "../secret"],
            &["fs", "read", "one", "."],
            &["fs", "ls", "one", "absent", "--json"],
            &["fs", "write", "one", "twice", "--new"],
            &["fs", "write", "one", "twice/below"],
            &["fs", "patch", "one"],
            &["fs", "patch", "one", "twice"],
            &["fs", "patch", "one", "twice", "--search", "a", "--replace", "b"],
            &["fs", "patch", "one", "twice", "--search", "c", "--replace", "b"],
            &["fs", "grep", "one", "("],
            &["fs", "glob", "one", "["],
            &["fs", "rm", "one", "."],
            &["fs", "rm", "one", "absent"],
            &["fs", "ls", "two"],
        ],
    )?);
    Ok(())
}

#[test]
fn links_and_pipes_of_the_agent_do_not_lead_outside() -> Result<()> {
    let Some(home) = running_bottle("files", "linux", &[])? else { return Ok(()) };
    let script = "ln -s /etc/passwd link; ln -s / root; mkfifo pipe; mkdir dir; echo inside >dir/file; \
                  ln -s dir/file good; printf '\\377' >bad; ln -s ../../../../etc/passwd dir/up";
    let _ = run(&home, &["exec", "one", "--", "sh", "-c", script])?.expect_code(0);
    for path in ["link", "root/etc/passwd", "dir/up", "pipe", "/etc/passwd"] {
        let refused = run(&home, &["fs", "read", "one", path])?.expect_code(1);
        ensure!(refused.stdout.is_empty() && refused.stderr.contains("hint: "), "{path}: {}", refused.stderr);
        let refused = home.program(["fs", "write", "one", path])?.input("x").run()?.expect_code(1);
        ensure!(refused.stderr.contains("cannot "), "{path}: {}", refused.stderr);
    }
    ensure!(run(&home, &["fs", "read", "one", "good"])?.expect_code(0).stdout == "inside\n");
    let bytes = json(&home, &["read", "one", "bad"], "")?;
    ensure!(bytes["base64"] == "/w==" && bytes["text"].is_null(), "{bytes}");
    // An archive can be exported and imported, but not imported through a link.
    let archive = run(&home, &["fs", "export", "one", "dir"])?.expect_code(0).stdout;
    let imported = json(&home, &["import", "one", "copy/of"], &archive)?;
    ensure!(imported["entries"] == 2, "{imported}");
    ensure!(run(&home, &["fs", "read", "one", "copy/of/file"])?.expect_code(0).stdout == "inside\n");
    // A file is exported too. A truncated archive changes nothing.
    let one = run(&home, &["fs", "export", "one", "good"])?.expect_code(0).stdout;
    let _ = home.program(["fs", "import", "one", "copy/two"])?.input(&one[..600]).run()?.expect_code(1);
    let _ = run(&home, &["fs", "stat", "one", "copy/two"])?.expect_code(1);
    ensure!(json(&home, &["import", "one", "copy/two"], &one)?["entries"] == 1);
    ensure!(run(&home, &["fs", "read", "one", "copy/two/good"])?.expect_code(0).stdout == "inside\n");
    let refused = home.program(["fs", "import", "one", "root/tmp"])?.input(archive).run()?.expect_code(1);
    ensure!(refused.stderr.contains("leads outside the workspace"), "{}", refused.stderr);
    // The agent can use files that a client writes.
    let _ = json(&home, &["write", "one", "new/file"], "from outside\n")?;
    let script = "cat new/file && echo more >>new/file && mv new newer";
    let used = run(&home, &["exec", "one", "--", "sh", "-c", script])?.expect_code(0);
    ensure!(used.stdout == "from outside\n", "{}", used.stdout);
    ensure!(
        run(&home, &["fs", "read", "one", "newer/file"])?.expect_code(0).stdout == "from outside\nmore\n"
    );
    Ok(())
}
