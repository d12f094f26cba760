//! Tests `pull` and `diff`. The fake backend has no git, so most tests need the Linux backend.

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::{home, run, snapshot, transcripts};

pub(crate) const LINUX: &str =
    "---\nbackend: linux\nagent_provider: {template: command, command: [sleep, '600']}\n---\n";

/// Runs a shell script in the bottle `one`.
pub(crate) fn inside(home: &TestHome, script: &str) -> Result<String> {
    let script = format!(
        "git() {{ command git -c user.name=Agent -c user.email=agent@example.com -c init.defaultBranch=main \"$@\"; }}; {script}"
    );
    Ok(run(home, &["exec", "one", "--", "/bin/sh", "-ec", &script])?.expect_code(0).stdout)
}

/// Returns a home with the agent `work`. If the backend or git is not available, reports that the test is skipped and
/// returns `None`.
pub(crate) fn with_git(test: &str) -> Result<Option<TestHome>> {
    let mut home = home()?;
    home.bottle("work", LINUX)?.agent("work", "---\nbottle: work\n---\n")?;
    if !home.runs_with_git(test, "linux")? {
        return Ok(None);
    }
    Ok(Some(home))
}

/// Returns a home with a bottle `one` that has a copy of the user's project, which is a repository with one commit.
/// Otherwise like [`with_git`].
pub(crate) fn with_a_copy(test: &str) -> Result<Option<TestHome>> {
    let Some(home) = with_git(test)? else { return Ok(None) };
    home.write("project/code", "one\n")?;
    for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "begin"]] {
        home.git(arguments)?;
    }
    let _ = run(&home, &["start", "work", "--cwd", "--detach", "--label", "one", "-q"])?.expect_code(0);
    Ok(Some(home))
}

#[test]
fn a_resumed_bottle_has_no_unsaved_work_after_a_pull() -> Result<()> {
    let Some(home) = with_a_copy("a_resumed_bottle_has_no_unsaved_work_after_a_pull")? else { return Ok(()) };
    let stop = ["stop", "one", "--time", "0", "--json"];
    inside(&home, "echo two >>code; git commit -qam more")?;
    let stopped = run(&home, &stop)?.expect_code(0).json()?;
    assert_eq!(stopped["kept"], "files", "{stopped}");
    let _ = run(&home, &["pull", "one", "-q"])?.expect_code(0);
    let _ = run(&home, &["resume", "one", "--detach", "-y", "-q"])?.expect_code(0);
    assert_eq!(inside(&home, "cat code")?, "one\ntwo\n");
    let stopped = run(&home, &stop)?.expect_code(0).json()?;
    assert!(stopped["kept"].is_null(), "{stopped}");
    Ok(())
}

#[test]
fn pulls_from_all_forks() -> Result<()> {
    let Some(home) = with_a_copy("pulls_from_all_forks")? else { return Ok(()) };
    inside(&home, "echo two >>code; git commit -qam more")?;
    for (from, to) in [("one", "two"), ("two", "three")] {
        let _ = run(&home, &["fork", from, "--label", to, "-y", "-q"])?.expect_code(0);
    }
    let commit = "echo three >>code; git -c user.name=A -c user.email=a@example.com commit -qam third";
    let _ = run(&home, &["exec", "three", "--", "/bin/sh", "-ec", commit])?.expect_code(0);
    let pulled = run(&home, &["pull", "one", "--all-forks", "-q"])?.expect_code(0).stdout;
    assert_eq!(pulled, "bottle/one\nbottle/two\nbottle/three\n");
    assert_eq!(home.git(&["show", "bottle/two:code"])?, "one\ntwo\n");
    assert_eq!(home.git(&["show", "bottle/three:code"])?, "one\ntwo\nthree\n");
    // A fork that ended and left only logs is not an error.
    let _ = run(&home, &["fork", "one", "--label", "ended", "-y", "-q"])?.expect_code(0);
    let _ = run(&home, &["pull", "ended", "-q"])?.expect_code(0);
    let _ = run(&home, &["stop", "ended", "--time", "0", "-q"])?.expect_code(0);
    let again = run(&home, &["pull", "one", "--all-forks", "-q"])?.expect_code(0).stdout;
    assert_eq!(again, "bottle/one\nbottle/two\nbottle/three\n");
    // A fork without a repository does not prevent the pulls from the other forks.
    let _ = run(&home, &["exec", "two", "--", "rm", "-rf", ".git"])?.expect_code(0);
    let outcome = run(&home, &["pull", "two", "--all-forks"])?.expect_code(1);
    assert!(outcome.stderr.contains("the workspace of two is not a git repository"), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "bottle/three\n");
    Ok(())
}

/// The workspaces are compared by their files: committed or not, with a repository or without one.
#[test]
fn shows_how_two_bottles_differ() -> Result<()> {
    let Some(home) = with_a_copy("shows_how_two_bottles_differ")? else { return Ok(()) };
    let _ = run(&home, &["fork", "one", "--label", "two", "-y", "-q"])?.expect_code(0);
    let mut text = transcripts(&home, &[&["diff", "one", "two"]])?;
    inside(&home, "echo mine >>code; git commit -qam more")?;
    let change = "echo other >>code; echo new >added; rm -rf .git";
    let _ = run(&home, &["exec", "two", "--", "/bin/sh", "-ec", change])?.expect_code(0);
    let _ = run(&home, &["stop", "two", "--time", "0", "-q"])?.expect_code(0);
    text += &transcripts(
        &home,
        &[
            &["diff", "one", "two"],
            &["diff", "two", "one", "--json"],
            &["diff", "one", "one"],
            &["diff", "one", "nobody"],
        ],
    )?;
    snapshot!(text);
    Ok(())
}

#[test]
fn pulls_commits_and_reports_uncommitted_files() -> Result<()> {
    let Some(home) = with_a_copy("pulls_commits_and_reports_uncommitted_files")? else {
        return Ok(());
    };
    let mut text = transcripts(&home, &[&["diff", "one"], &["pull", "one"]])?;
    inside(
        &home,
        "echo two >>code; git commit -qam more; git tag -a -m x v1; echo new >file; echo three >>code",
    )?;
    text += &transcripts(&home, &[&["diff", "one"], &["pull", "one"], &["pull", "one", "--json"]])?;
    assert_eq!(home.git(&["show", "bottle/one:code"])?, "one\ntwo\n");
    assert_eq!(home.git(&["tag"])?, "", "no tag comes along");
    assert_eq!(std::fs::read_to_string(home.project().join("code"))?, "one\n", "nothing is checked out");
    inside(
        &home,
        "git add -A; git commit -qm rest; git branch side; git checkout -q side; git commit -q --allow-empty -m aside; git checkout -q main",
    )?;
    text += &transcripts(
        &home,
        &[&["pull", "one"], &["pull", "one", "--branch", "side"], &["pull", "one", "--branch", "nope"]],
    )?;
    assert_eq!(home.git(&["log", "-1", "--format=%s", "bottle/one"])?, "aside\n");
    // Everything has been pulled into the user's repository, so the bottle is not kept.
    text += &transcripts(&home, &[&["stop", "one", "--time", "0"], &["pull", "one"]])?;
    snapshot!(text);
    Ok(())
}

/// The uncommitted work is one commit on the branch. A later pull replaces this commit, and the bottle's repository
/// does not change.
#[test]
fn pulls_uncommitted_work_as_one_commit() -> Result<()> {
    let Some(home) = with_a_copy("pulls_uncommitted_work_as_one_commit")? else { return Ok(()) };
    let pull = ["pull", "one", "--uncommitted"];
    let mut text = transcripts(&home, &[&pull])?;
    inside(
        &home,
        "echo two >>code; git commit -qam more; echo three >>code; echo new >file; ln -s code link; \
         printf 'built/\n' >.gitignore; mkdir built; touch built/x; git add file; git status --short >/tmp/before",
    )?;
    text += &transcripts(&home, &[&pull, &pull])?;
    assert_eq!(
        inside(&home, "git status --short | diff /tmp/before -; git log --format=%s")?,
        "more\nbegin\n"
    );
    assert_eq!(home.git(&["show", "bottle/one:code"])?, "one\ntwo\nthree\n");
    assert_eq!(
        home.git(&["log", "--format=%an %s", "bottle/one"])?,
        "work Uncommitted work of one\nAgent more\nAnn begin\n"
    );
    let paths = home.git(&["ls-tree", "-r", "--name-only", "bottle/one"])?;
    assert_eq!(paths, ".gitignore\ncode\nfile\nlink\n");
    // A later pull replaces the commit, with other uncommitted work or without any.
    inside(&home, "git add -A; git commit -qm rest; echo four >>code")?;
    text += &transcripts(&home, &[&pull])?;
    inside(&home, "git checkout -q code")?;
    text += &transcripts(&home, &[&["pull", "one"]])?;
    assert_eq!(home.git(&["log", "--format=%s", "bottle/one"])?, "rest\nmore\nbegin\n");
    // A commit that the user amended belongs to the user and is not replaced.
    inside(&home, "echo five >>code")?;
    let _ = run(&home, &pull)?.expect_code(0);
    home.git(&["checkout", "-q", "bottle/one"])?;
    home.git(&["commit", "-q", "--amend", "-m", "mine"])?;
    home.git(&["checkout", "-q", "main"])?;
    inside(&home, "echo six >>code")?;
    text += &transcripts(&home, &[&pull, &["stop", "one", "--time", "0"], &pull])?;
    home.git(&["branch", "-q", "-D", "bottle/one"])?;
    // The pull also works with the files of an ended bottle.
    text += &transcripts(&home, &[&pull, &["pull", "one", "--uncommitted", "--json"]])?;
    // The ids of the commits depend on the time.
    let mut parts = text.split("this replaces ");
    let first = parts.next().unwrap_or_default().to_owned();
    snapshot!(parts.fold(first, |text, part| format!("{text}this replaces [ID]{}", &part[12..])));
    Ok(())
}

/// If the workspace has no commits, its files become a commit on top of the user's last commit.
#[test]
fn pulls_the_files_of_a_workspace_without_commits() -> Result<()> {
    let Some(home) = with_a_copy("pulls_the_files_of_a_workspace_without_commits")? else { return Ok(()) };
    inside(&home, "rm -rf .git; echo two >>code")?;
    let pull = ["pull", "one", "--uncommitted"];
    let mut text = transcripts(&home, &[&pull])?;
    assert_eq!(home.git(&["log", "--format=%s", "bottle/one"])?, "Uncommitted work of one\nbegin\n");
    inside(&home, "git init -q")?;
    text += &transcripts(&home, &[&pull])?;
    // The second bottle starts with an empty workspace.
    let _ = run(&home, &["start", "work", "--detach", "--label", "empty", "-q"])?.expect_code(0);
    let _ = run(&home, &["exec", "empty", "--", "/bin/sh", "-c", "mkdir a; echo new >a/b"])?.expect_code(0);
    text += &transcripts(
        &home,
        &[
            &["pull", "empty"],
            &["pull", "empty", "--repository", "."],
            &["pull", "empty", "--uncommitted", "--repository", "."],
        ],
    )?;
    assert_eq!(home.git(&["log", "--format=%an %s", "bottle/empty"])?, "work Uncommitted work of empty\n");
    assert_eq!(home.git(&["show", "bottle/empty:a/b"])?, "new\n");
    text += &transcripts(
        &home,
        &[&["stop", "empty", "--time", "0"], &["stop", "one", "--time", "0"], &["list"]],
    )?;
    snapshot!(text);
    Ok(())
}

/// On a terminal, a pull that leaves uncommitted work behind asks whether to pull this work too.
#[test]
fn offers_to_take_uncommitted_work() -> Result<()> {
    let Some(home) = with_a_copy("offers_to_take_uncommitted_work")? else { return Ok(()) };
    inside(&home, "echo two >>code")?;
    for (key, text) in [("n\r", "one\n"), ("y\r", "one\ntwo\n")] {
        let mut pty = home.on_terminal(&["pull", "one"], 24, 80)?;
        pty.wait_for("Take the uncommitted work too, as one commit on bottle/one? [y/N]")?;
        pty.type_keys(key)?;
        assert_eq!(pty.wait_exit()?, 0, "{}", pty.screen());
        assert_eq!(home.git(&["show", "bottle/one:code"])?, text);
    }
    inside(&home, "rm -rf .git")?;
    let mut pty = home.on_terminal(&["pull", "one"], 24, 80)?;
    pty.wait_for("Take the files of its workspace, as one commit on bottle/one? [y/N]")?;
    pty.type_keys("\r")?;
    assert_eq!(pty.wait_exit()?, 1, "{}", pty.screen());
    Ok(())
}

#[test]
fn never_loses_the_users_commits() -> Result<()> {
    let Some(home) = with_a_copy("never_loses_the_users_commits")? else { return Ok(()) };
    inside(&home, "git commit -q --allow-empty -m theirs")?;
    let _ = run(&home, &["pull", "one"])?.expect_code(0);
    home.git(&["checkout", "-q", "bottle/one"])?;
    home.git(&["commit", "-q", "--allow-empty", "-m", "mine"])?;
    let mut text = transcripts(&home, &[&["pull", "one"]])?;
    home.git(&["checkout", "-q", "main"])?;
    inside(&home, "git commit -q --allow-empty -m theirs-too")?;
    text += &transcripts(&home, &[&["pull", "one"]])?;
    assert_eq!(home.git(&["log", "-1", "--format=%s", "bottle/one"])?, "mine\n");
    snapshot!(text);
    Ok(())
}

#[test]
fn reports_a_workspace_without_commits() -> Result<()> {
    let Some(home) = with_a_copy("reports_a_workspace_without_commits")? else { return Ok(()) };
    inside(&home, "rm -rf .git")?;
    let mut text = transcripts(&home, &[&["pull", "one"], &["diff", "one"]])?;
    inside(&home, "git init -q")?;
    text += &transcripts(&home, &[&["pull", "one"], &["diff", "one"]])?;
    let _ = run(&home, &["stop", "one", "--time", "0"])?.expect_code(0);
    text += &transcripts(&home, &[&["pull", "one"], &["diff", "one"], &["pull", "nobody"]])?;
    snapshot!(text);
    Ok(())
}

#[test]
fn reports_a_bottle_without_git() -> Result<()> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    snapshot!(transcripts(&home, &[&["pull", "one"], &["diff", "one"]])?);
    Ok(())
}

/// The agent controls everything in the bottle: the repository's configuration, hooks, objects, and the
/// program `git`.
#[test]
fn a_hostile_repository_runs_nothing_on_the_host() -> Result<()> {
    let name = "a_hostile_repository_runs_nothing_on_the_host";
    let Some(home) = with_a_copy(name)? else { return Ok(()) };
    let marker = home.outside("ran");
    let touch = format!("touch {}", marker.display());
    inside(
        &home,
        &format!(
            "git config uploadpack.packObjectsHook '{touch}'; git config core.fsmonitor '{touch}'; \
             git config core.sshCommand '{touch}'; git config diff.external '{touch}'; \
             printf '#!/bin/sh\\n{touch}\\n' >.git/hooks/post-checkout; chmod +x .git/hooks/post-checkout; \
             git commit -q --allow-empty -m 'plain\x1b]0;title\x07'"
        ),
    )?;
    let _ = run(&home, &["pull", "one"])?.expect_code(0);
    assert!(!marker.exists());
    // The tree has an entry `.git`, which git would use as a repository after a checkout. `git fsck` refuses such a
    // tree.
    inside(
        &home,
        "blob=$(printf '[core]\\n\\tfsmonitor = x\\n' | git hash-object -w --stdin); \
         tree=$(printf \"100644 blob $blob\\tconfig\\n\" | git mktree); \
         top=$(printf \"040000 tree $tree\\t.git\\n\" | git mktree); \
         git update-ref HEAD $(git commit-tree $top -p HEAD -m evil)",
    )?;
    let refused = run(&home, &["pull", "one"])?.expect_code(1);
    assert!(
        refused.stderr.contains("cannot fetch") && refused.stderr.contains("hasDotgit"),
        "{}",
        refused.stderr
    );
    assert!(!refused.stderr.contains('\x1b'));
    assert_ne!(home.git(&["log", "-1", "--format=%s", "bottle/one"])?, "evil\n");
    // The agent's own `git` is first in the search path and prints arbitrary output.
    inside(
        &home,
        "mkdir -p ~/.local/bin; printf '#!/bin/sh\\nprintf \"\\\\033[31mxxxx\"; exit 0\\n' >~/.local/bin/git; chmod +x ~/.local/bin/git",
    )?;
    let lied = run(&home, &["pull", "one"])?;
    assert_ne!(lied.code, 0);
    assert!(!lied.stderr.contains('\x1b') && !lied.stdout.contains('\x1b'), "{}", lied.stderr);
    Ok(())
}

#[test]
fn pulls_branches_by_name_in_every_script() -> Result<()> {
    let Some(home) = with_a_copy("pulls_branches_by_name_in_every_script")? else { return Ok(()) };
    for branch in ["ветка", "日本/修正", "שלום", "🦀", "e\u{301}té"] {
        inside(
            &home,
            &format!(
                "git checkout -q -b '{branch}' main; git commit -q --allow-empty -m 'on {branch}'; git checkout -q main"
            ),
        )?;
        let pulled = run(&home, &["pull", "one", "--branch", branch])?;
        // The local branch is deleted after each pull, because the next branch does not contain it.
        assert_eq!(pulled.code, 0, "{}", pulled.transcript());
        assert_eq!(home.git(&["log", "-1", "--format=%s", "bottle/one"])?, format!("on {branch}\n"));
        home.git(&["branch", "-q", "-D", "bottle/one"])?;
    }
    let mut text = String::new();
    for branch in ["нет-такой", "無", "two words", "-dash", "a..b", "\u{1b}[31m"] {
        text += &transcripts(&home, &[&["pull", "one", &format!("--branch={branch}")]])?;
    }
    assert!(!text.contains('\u{1b}'));
    snapshot!(text.replace('\u{1b}', "ESC"));
    Ok(())
}

/// A `git` of the agent that never exits does not prevent Ctrl-C.
#[test]
fn an_interrupted_pull_changes_no_branch() -> Result<()> {
    let test = "an_interrupted_pull_changes_no_branch";
    let Some(home) = with_a_copy(test)? else { return Ok(()) };
    inside(&home, "git commit -q --allow-empty -m more")?;
    for (rows, columns) in [(24, 80), (10, 40)] {
        inside(
            &home,
            "mkdir -p ~/.local/bin; printf '#!/bin/sh\\nexec sleep 600\\n' >~/.local/bin/git; chmod +x ~/.local/bin/git",
        )?;
        let mut pty = home.on_terminal(&["pull", "one"], rows, columns)?;
        pty.wait_for("pulling")?;
        std::thread::sleep(std::time::Duration::from_millis(300));
        let screen = pty.screen();
        assert_eq!(screen.matches("pulling").count(), 1, "{screen}");
        assert!(pty.broken_lines().is_empty(), "{screen}");
        pty.type_keys("\x03")?;
        assert_eq!(pty.wait_exit()?, 130, "{}", pty.screen());
        let screen = pty.last_screen()?;
        let said: Vec<&str> = screen.split_whitespace().collect();
        assert!(said.join(" ").contains("the local branch is either unchanged or complete"), "{screen}");
        assert!(!screen.contains("pulling") && pty.is_cooked()? && pty.left_on().is_empty(), "{screen}");
        assert_eq!(home.git(&["branch", "--list", "bottle/*"])?, "");
        let _ = run(&home, &["exec", "one", "--", "/bin/sh", "-c", "rm ~/.local/bin/git"])?.expect_code(0);
    }
    let _ = run(&home, &["pull", "one"])?.expect_code(0);
    assert_eq!(home.git(&["log", "-1", "--format=%s", "bottle/one"])?, "more\n");
    Ok(())
}

/// A script that installs a `git` of the agent. It prints nothing for `diff` and `status`, and runs the real
/// git for other subcommands.
const LIAR: &str = "mkdir -p ~/.local/bin; printf '#!/bin/sh\\nfor word; do case $word in \
     diff|status) exit 0;; esac; done\\nPATH=${PATH#*:} exec git \"$@\"\\n' >~/.local/bin/git; \
     chmod +x ~/.local/bin/git";

/// Ways in which an agent may try to hide a change: a description, a script for the bottle, and the lines
/// that `bottle diff` must still show.
const DISGUISES: [(&str, &str, &[&str]); 12] = [
    ("a git that shows nothing", LIAR, &["+evil", "b/added"]),
    (
        "attributes of the workspace",
        "printf '* -diff\\n* binary\\n* linguist-generated export-ignore\\n' >.gitattributes",
        &["+evil", "+added"],
    ),
    ("attributes of the repository", "echo '* -diff' >.git/info/attributes", &["+evil", "+added"]),
    (
        "attributes of the configuration",
        "echo '* -diff' >/tmp/a; git config core.attributesFile /tmp/a",
        &["+evil", "+added"],
    ),
    (
        "a clean filter",
        "git config filter.x.clean 'echo one'; echo 'code filter=x' >.git/info/attributes",
        &["+evil"],
    ),
    (
        "a keyword that is folded",
        "echo 'added ident' >.gitattributes; echo '$Id: evil $' >added",
        &["+$Id: evil $"],
    ),
    ("an index that takes it for unchanged", "git update-index --assume-unchanged code", &["+evil"]),
    ("an index that skips it", "git update-index --skip-worktree code", &["+evil"]),
    ("names that are left out", "printf 'added\\n' >.git/info/exclude", &["+added"]),
    (
        "a repository in the repository",
        "mkdir -p sub; mv added sub; cd sub; git init -q; git add -A; git commit -qm x",
        &["b/sub/added", "+added"],
    ),
    (
        "another history",
        "git checkout -q --orphan other; git add -A; git commit -qm other",
        &["+evil", "+added"],
    ),
    ("no history", "rm -rf .git", &["+evil", "+added"]),
];

/// Users read `bottle diff` before they pull, so neither the agent's `git` nor the agent's configuration may affect the
/// output.
#[test]
fn a_diff_hides_no_change_whatever_the_agent_sets_up() -> Result<()> {
    let Some(home) = with_a_copy("a_diff_hides_no_change_whatever_the_agent_sets_up")? else {
        return Ok(());
    };
    inside(&home, "cp -a /workspace /tmp/begin")?;
    let mut hidden = Vec::new();
    for (what, script, shown) in DISGUISES {
        inside(
            &home,
            &format!(
                "rm -rf ~/.local/bin/git; cd /; find /workspace -mindepth 1 -delete; cp -a /tmp/begin/. /workspace; \
                 cd /workspace; echo evil >>code; echo added >added; {script}"
            ),
        )?;
        let diff = run(&home, &["diff", "one"])?;
        if diff.code != 0 || shown.iter().any(|words| !diff.stdout.contains(words)) {
            hidden.push(format!("{what}: {}", diff.transcript()));
        }
    }
    assert!(hidden.is_empty(), "{}", hidden.join("\n"));
    Ok(())
}

/// `bottle diff` shows content that a pull would fetch and that the workspace does not contain. It lists
/// files that it does not compare.
#[test]
fn a_diff_shows_what_a_pull_brings_and_lists_omissions() -> Result<()> {
    let test = "a_diff_shows_what_a_pull_brings_and_lists_omissions";
    let Some(mut home) = with_a_copy(test)? else { return Ok(()) };
    inside(&home, "echo evil >>code; git commit -qam more; git show HEAD~1:code >code")?;
    let diff = run(&home, &["diff", "one"])?.expect_code(0);
    assert!(
        diff.stderr.contains("+evil") && diff.stderr.contains("`bottle pull` fetches"),
        "{}",
        diff.transcript()
    );
    inside(
        &home,
        "echo evil >>code; printf 'x\\r\\n' >ended; mkdir hidden; touch hidden/one hidden/two; \
         printf 'hidden\\n.gitignore\\n' >.gitignore; \
         mkdir -p sub; cd sub; git init -q; touch file; cd ..; truncate -s 1T long",
    )?;
    let temporary = tempfile::tempdir()?;
    home.env("TMPDIR", temporary.path());
    let diff = run(&home, &["diff", "one"])?.expect_code(0);
    let words =
        ["hidden (2 files)", ".gitignore (1 file)", "sub/.git was not compared", "long was not compared"];
    for words in words {
        assert!(diff.stderr.contains(words), "{words}: {}", diff.transcript());
    }
    assert!(diff.stdout.contains("+x\r\n") && diff.stdout.contains("b/sub/file"), "{}", diff.transcript());
    assert!(!diff.stderr.contains("`bottle pull` fetches"), "{}", diff.transcript());
    let none = std::fs::read_dir(temporary.path())?.next().is_none();
    assert!(none, "the directory of the comparison is gone");
    Ok(())
}

/// If standard output is not a terminal, `bottle diff` prints a patch that `git apply` accepts.
#[test]
fn a_diff_is_a_patch() -> Result<()> {
    let Some(home) = with_a_copy("a_diff_is_a_patch")? else { return Ok(()) };
    inside(
        &home,
        "git mv code 'named anew'; printf 'a\\0b' >binary; chmod +x binary; printf end >'no newline'; \
         ln -s binary link; \
         mkdir out; touch out/x; echo out >.gitignore; git commit -qm 'moved'; echo '\x1b[31mred' >>'named anew'",
    )?;
    let mut text = transcripts(&home, &[&["diff", "one", "--stat"], &["diff", "one", "--name-only"]])?;
    text += &transcripts(&home, &[&["diff", "one", "--stat", "--name-only"]])?;
    let patch = run(&home, &["diff", "one"])?.expect_code(0).stdout;
    let file = home.write("patch", &patch)?;
    home.git(&["apply", file.to_str().expect("UTF-8")])?;
    home.git(&["add", "-A"])?;
    text += &home.git(&["ls-files", "-s"])?;
    snapshot!(text);
    let red = std::fs::read_to_string(home.project().join("named anew"))?;
    assert_eq!(red, "one\n\u{1b}[31mred\n");
    Ok(())
}

/// A `git` of the agent that reports no uncommitted files does not cause the removal of uncommitted files.
#[test]
fn counts_work_that_the_bottles_git_denies() -> Result<()> {
    let Some(home) = with_a_copy("counts_work_that_the_bottles_git_denies")? else { return Ok(()) };
    inside(&home, &format!("git commit -q --allow-empty -m more; echo precious >new; {LIAR}"))?;
    let pulled = run(&home, &["pull", "one", "--json"])?.expect_code(0).json()?;
    assert_eq!(pulled["uncommitted"], 1, "{pulled}");
    let stopped = run(&home, &["stop", "one", "--time", "0"])?.expect_code(0);
    assert!(home.bottle_home().join("state/one").exists(), "it is kept: {}", stopped.transcript());
    Ok(())
}

/// Makes `directory` a repository whose configuration names programs that create `ran`: as a partial clone that lacks
/// objects, by hooks, and by rewritten addresses.
fn hostile(home: &TestHome, directory: &std::path::Path, ran: &std::path::Path) -> Result<()> {
    let program = format!("sh -c 'touch {}; exit 1' --", ran.display());
    let url = format!("url.ext::{program} .insteadOf");
    let settings = [
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "evil"),
        ("remote.evil.url", "ssh://host/path"),
        ("remote.evil.promisor", "true"),
        ("core.sshCommand", &program),
        ("core.fsmonitor", &program),
        ("core.alternateRefsCommand", &program),
        ("diff.external", &program),
        ("filter.f.clean", &program),
        ("filter.f.process", &program),
        ("filter.f.required", "true"),
        ("uploadpack.packObjectsHook", &program),
        ("protocol.ext.allow", "always"),
        (&url, "/"),
    ];
    for (key, value) in settings {
        let path = directory.join(".git/config").display().to_string();
        home.git(&["config", "--file", &path, key, value])?;
    }
    let hook = directory.join(".git/hooks/reference-transaction");
    std::fs::create_dir_all(directory.join(".git/hooks"))?;
    std::fs::write(&hook, format!("#!/bin/sh\ntouch {}\n", ran.display()))?;
    std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(())
}

/// Another user may have written the user's repository. No program that this repository names runs, and the work can be
/// pulled.
#[test]
fn a_repository_that_names_programs_runs_none() -> Result<()> {
    let Some(home) = with_git("a_repository_that_names_programs_runs_none")? else { return Ok(()) };
    home.write("project/code", "one\n")?;
    home.write("project/.gitattributes", "* filter=f\n")?;
    home.write("project/sub/code", "one\n")?;
    for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "begin"]] {
        home.git(arguments)?;
    }
    let ran = home.outside("ran");
    hostile(&home, &home.project(), &ran)?;
    // A missing object makes git ask the promisor.
    let attributes = home.git(&["rev-parse", "HEAD:.gitattributes"])?;
    let (start, rest) = attributes.trim().split_at(2);
    std::fs::remove_file(home.project().join(".git/objects").join(start).join(rest))?;
    let _ = std::fs::remove_file(&ran);
    let mut dry = home.program(["start", "work", "--cwd", "--dry-run"])?;
    let _ = dry.directory(home.project().join("sub")).run()?.expect_code(0);
    let _ = run(&home, &["start", "work", "--cwd", "--detach", "--label", "one", "-q"])?.expect_code(0);
    let _ = run(&home, &["exec", "one", "--", "/bin/sh", "-c", "echo two >>code"])?.expect_code(0);
    for command in [&["diff", "one"][..], &["pull", "one", "--uncommitted"], &["apply", "one", "--yes"]] {
        let outcome = run(&home, command)?;
        assert!(!ran.exists(), "{command:?}: {}", outcome.transcript());
    }
    Ok(())
}

/// The agent creates a repository in the directory that it shares with the user.
#[test]
fn a_repository_that_an_agent_made_is_not_used() -> Result<()> {
    let Some(home) = with_git("a_repository_that_an_agent_made_is_not_used")? else { return Ok(()) };
    home.write("project/code", "one\n")?;
    let start = ["start", "work", "--cwd=live", "--detach", "--label", "one", "-y", "-q"];
    let _ = run(&home, &start)?.expect_code(0);
    home.git(&["init", "-q"])?;
    home.git(&["commit", "-q", "--allow-empty", "-m", "theirs"])?;
    let ran = home.outside("ran");
    hostile(&home, &home.project(), &ran)?;
    inside(&home, "git commit -q --allow-empty -m more || true")?;
    // The files are compared with the files at the start of the bottle.
    for (command, code) in [(&["diff", "one"][..], 0), (&["pull", "one"], 2)] {
        let outcome = run(&home, command)?.expect_code(code);
        assert!(!ran.exists(), "{command:?}: {}", outcome.transcript());
        assert!(code == 0 || outcome.stderr.contains("--repository"), "{}", outcome.transcript());
    }
    assert_eq!(home.git(&["branch", "--list", "bottle/*"])?, "");
    Ok(())
}

/// If the user clones a repository again at the same path, this clone is not the repository that was copied.
#[test]
fn another_repository_at_the_same_path_needs_an_answer() -> Result<()> {
    let Some(home) = with_a_copy("another_repository_at_the_same_path_needs_an_answer")? else {
        return Ok(());
    };
    inside(&home, "echo two >>code; git commit -qam more")?;
    home.git(&["clone", "-q", ".", "../again"])?;
    std::fs::remove_dir_all(home.project().join(".git"))?;
    std::fs::rename(home.project().join("../again/.git"), home.project().join(".git"))?;
    let reset = ["fs", "reset", "one", "--yes"];
    for command in [&["diff", "one"][..], &["pull", "one"], &["apply", "one", "--yes"], &reset] {
        let refused = run(&home, command)?.expect_code(2);
        assert!(refused.stderr.contains("--repository"), "{}", refused.transcript());
    }
    assert_eq!(home.git(&["branch", "--list", "bottle/*"])?, "");
    let mut pty = home.on_terminal(&["pull", "one"], 24, 200)?;
    pty.wait_for("It is not known to be the one that was copied. Use the repository")?;
    pty.type_keys("n\r")?;
    assert_ne!(pty.wait_exit()?, 0, "{}", pty.screen());
    let _ = run(&home, &["diff", "one", "--repository", "."])?.expect_code(0);
    let _ = run(&home, &["pull", "one", "--repository", "."])?.expect_code(0);
    assert_eq!(home.git(&["show", "bottle/one:code"])?, "one\ntwo\n");
    let _ = run(&home, &[&reset[..], &["--repository", "."]].concat())?.expect_code(0);
    assert_eq!(inside(&home, "cat code")?, "one\n");
    Ok(())
}

/// A script that installs a `git` of the agent. It records its input, and offers its own commit.
const LISTENER: &str = "mkdir -p ~/.local/bin; printf '#!/bin/sh\\ncase \"$*\" in *upload-pack*) \
     tee -a /tmp/heard | PATH=${PATH#*:} exec git \"$@\";; *) PATH=${PATH#*:} exec git \"$@\";; esac\\n' \
     >~/.local/bin/git; chmod +x ~/.local/bin/git";

/// A bottle that got no copy of the user's repository learns nothing about this repository.
#[test]
fn a_bottle_hears_no_commit_that_it_was_not_given() -> Result<()> {
    let Some(home) = with_a_copy("a_bottle_hears_no_commit_that_it_was_not_given")? else { return Ok(()) };
    let given = home.git(&["rev-parse", "HEAD"])?;
    home.write("project/private", "private\n")?;
    home.git(&["add", "-A"])?;
    home.git(&["commit", "-qm", "private"])?;
    let private = home.git(&["rev-parse", "HEAD"])?;
    inside(&home, &format!("echo two >>code; git commit -qam more; {LISTENER}"))?;
    let _ = run(&home, &["start", "work", "--detach", "--label", "two", "-q"])?.expect_code(0);
    let own = format!(
        "git init -q; git -c user.name=A -c user.email=a@example.com commit -q --allow-empty -m x; {LISTENER}"
    );
    let _ = run(&home, &["exec", "two", "--", "/bin/sh", "-ec", &own])?.expect_code(0);
    for slug in ["one", "two"] {
        let _ = run(&home, &["diff", slug])?.expect_code(0);
        let heard = run(&home, &["exec", slug, "--", "cat", "/tmp/heard"])?.expect_code(0).stdout;
        assert!(heard.contains("want ") && !heard.contains(private.trim()), "{slug}: {heard}");
        let haves: Vec<&str> = heard.split("have ").skip(1).map(|rest| &rest[..40]).collect();
        let expected = if slug == "one" { vec![given.trim()] } else { Vec::new() };
        assert_eq!(haves, expected, "{slug}: {heard}");
    }
    // The files of the bottle without a copy are not compared with the user's commits.
    let diff = run(&home, &["diff", "two"])?.expect_code(0);
    assert!(!diff.stdout.contains("private"), "{}", diff.transcript());
    Ok(())
}

/// Without commits in the bottle, and without changes, there is nothing to commit.
#[test]
fn a_broken_repository_makes_no_empty_commit() -> Result<()> {
    let Some(home) = with_a_copy("a_broken_repository_makes_no_empty_commit")? else { return Ok(()) };
    inside(&home, "echo broken >.git/HEAD")?;
    let refused = run(&home, &["pull", "one", "--uncommitted"])?.expect_code(1);
    assert!(refused.stderr.contains("its files are those of your last commit"), "{}", refused.transcript());
    assert_eq!(home.git(&["branch", "--list", "bottle/*"])?, "");
    Ok(())
}
