//! Tests an agent's conversations: they are exported without secrets whenever the agent exits, continued by a
//! resume, and restored to a new bottle. The agent is a script that stores its conversations where Claude
//! Code does.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::{home, run};

/// The agent's script: prints its arguments and its conversation, adds its secret to the conversation, and exits with
/// the code in its task.
const CLAUDE: &str = r#"#!/bin/sh
memory=$HOME/.claude/projects/-workspace
case " $* " in *" --continue "*) echo continued ;; *) echo anew ;; esac
cat $memory/talk.jsonl 2>/dev/null
mkdir -p $memory
echo "said $TOKEN" >>$memory/talk.jsonl
ln -sf /etc/passwd $memory/link
cat "$BOTTLE_TASK_FILE" | sh
"#;

const BOTTLE: &str = "---\nbackend: linux\nagent_provider: {template: claude, auth_token: CLAUDE_KEY}\n\
    env: {TOKEN: $TOKEN}\n---\n";

fn with_a_claude(test: &str) -> Result<Option<TestHome>> {
    let mut home = home()?;
    if !home.runs(test, "linux")? {
        return Ok(None);
    }
    home.bottle("talker", BOTTLE)?.agent("talker", "---\nbottle: talker\n---\n")?;
    let tools = home.outside("tools");
    std::fs::create_dir_all(&tools)?;
    std::fs::write(tools.join("claude"), CLAUDE)?;
    for path in [home.root(), &tools, &tools.join("claude")] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755))?;
    }
    home.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", tools.display()));
    home.env("CLAUDE_KEY", "sk-ant-api03-0123456789abcdef").env("TOKEN", "hunter2-hunter2-hunter2");
    Ok(Some(home))
}

/// Returns the path and the text of the only exported conversation.
fn copied_out(home: &TestHome) -> Result<(PathBuf, String)> {
    let own = home.bottle_home().join("transcripts/one");
    let lives: Vec<_> = std::fs::read_dir(&own)?.collect::<Result<_, _>>()?;
    assert_eq!(lives.len(), 1, "{lives:?}");
    let directory = lives[0].path().join("home/agent/.claude/projects/-workspace");
    assert!(!directory.join("link").exists(), "a link that leads out is no conversation");
    let file = directory.join("talk.jsonl");
    let text = std::fs::read_to_string(&file)?;
    Ok((file, text))
}

#[test]
fn conversations_are_exported_masked_and_continued() -> Result<()> {
    let name = "conversations_are_exported_masked_and_continued";
    let Some(home) = with_a_claude(name)? else { return Ok(()) };
    let start = |task: &str| run(&home, &["start", "talker", "--label", "one", "-p", task, "-q"]);
    // The agent succeeds and leaves no work: only the exported conversation is kept, which a resume continues.
    let clean = start("exit 0")?.expect_code(0);
    assert_eq!(clean.stdout, "anew\n");
    assert_eq!(copied_out(&home)?.1, "said [redacted]\n");
    assert!(run(&home, &["list"])?.stdout.contains("kept (conversation)"), "{}", clean.stderr);
    assert!(!home.bottle_home().join("state/one/agent").exists(), "its files are removed");
    let continued = run(&home, &["resume", "one", "-p", "exit 0", "-q"])?.expect_code(0);
    assert_eq!(continued.stdout, "continued\nsaid [redacted]\n");
    let taken = start("exit 0")?.expect_code(1);
    assert!(taken.stderr.contains("`bottle resume one` continues it"), "{}", taken.stderr);
    let _ = run(&home, &["discard", "one", "--yes", "-q"])?.expect_code(0);
    std::fs::remove_dir_all(home.bottle_home().join("transcripts"))?;

    // The agent fails and leaves no work: the bottle is kept for its conversation.
    let failed = start("exit 3")?.expect_code(3);
    assert!(!failed.stdout.contains("continued"), "{}", failed.stdout);
    assert!(run(&home, &["list"])?.stdout.contains("kept"), "{}", failed.stderr);
    let resumed = run(&home, &["resume", "one", "-p", "exit 3", "-q"])?.expect_code(3);
    // The conversation in the bottle itself is not masked.
    assert_eq!(resumed.stdout, "continued\nsaid hunter2-hunter2-hunter2\n");
    assert_eq!(copied_out(&home)?.1, "said [redacted]\nsaid [redacted]\n");

    // The bottle's files are removed, so the new bottle gets the exported conversation.
    std::fs::remove_dir_all(home.bottle_home().join("state/one/agent"))?;
    let rebuilt = run(&home, &["resume", "one", "-p", "exit 3", "-q"])?.expect_code(3);
    assert!(rebuilt.stderr.contains("built anew"), "{}", rebuilt.stderr);
    assert_eq!(rebuilt.stdout, "continued\nsaid [redacted]\nsaid [redacted]\n");

    // Without any conversation, the agent starts a new one, which is not an error.
    std::fs::remove_dir_all(home.bottle_home().join("state/one/agent"))?;
    std::fs::remove_dir_all(home.bottle_home().join("transcripts"))?;
    let anew = run(&home, &["resume", "one", "-p", "exit 0", "-q"])?.expect_code(0);
    assert_eq!(anew.stdout, "anew\n");
    Ok(())
}

/// The file of the conversation in a bottle.
const TALK: &str = "/home/agent/.claude/projects/-workspace/talk.jsonl";

/// Repeats a command until it exits with 0 and prints these words.
fn until(home: &TestHome, arguments: &[&str], words: &str) -> Result<()> {
    for _ in 0..200 {
        let seen = run(home, arguments)?;
        if seen.code == 0 && seen.stdout.contains(words) {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    anyhow::bail!("{arguments:?} never printed {words:?}")
}

#[test]
fn an_export_has_the_conversation_of_a_last_turn_without_changes() -> Result<()> {
    let name = "an_export_has_the_conversation_of_a_last_turn_without_changes";
    let Some(home) = with_a_claude(name)? else { return Ok(()) };
    let task = format!("until test -e /tmp/go; do sleep 0.1; done; echo later >>{TALK}");
    let start = ["start", "talker", "--label", "one", "-p", &task, "-q", "--detach"];
    let _ = run(&home, &start)?.expect_code(0);
    until(&home, &["exec", "one", "--", "cat", TALK], "said")?;
    let _ = run(&home, &["exec", "one", "--", "sh", "-c", "echo work >note"])?.expect_code(0);
    let _ = run(&home, &["commit", "one", "-q"])?.expect_code(0);
    let _ = run(&home, &["commit", "one", "--as", "early", "-q"])?.expect_code(0);
    let _ = run(&home, &["exec", "one", "--", "touch", "/tmp/go"])?.expect_code(0);
    until(&home, &["list"], "kept")?;
    assert!(copied_out(&home)?.1.contains("later"));
    assert!(!home.bottle_home().join("state/one/agent").exists(), "only snapshots are left");

    for (bottle, label, newest) in [("one", "two", true), ("one@early", "three", false)] {
        let file = format!("{label}.bottle");
        let exported = run(&home, &["export", bottle, "-o", &file, "-q"])?;
        let _ = exported.expect_code(0);
        let _ = run(&home, &["import", &file, "--label", label, "--yes", "-q"])?.expect_code(0);
        let resumed = run(&home, &["resume", label, "-p", "cat note", "-q"])?.expect_code(0);
        assert!(resumed.stdout.starts_with("continued\nsaid "), "{}", resumed.stdout);
        assert_eq!(resumed.stdout.contains("later"), newest, "{}", resumed.stdout);
        assert!(resumed.stdout.ends_with("work\n"), "{}", resumed.stdout);
    }
    Ok(())
}

/// After a stop of the agent, pid 1 keeps running until the conversation is copied.
#[test]
fn a_stop_keeps_the_conversation_until_it_is_pruned() -> Result<()> {
    let Some(home) = with_a_claude("a_stop_keeps_the_conversation_until_it_is_pruned")? else {
        return Ok(());
    };
    let arguments = ["start", "talker", "--label", "one", "-p", "sleep 600", "-q", "--detach"];
    let _ = run(&home, &arguments)?.expect_code(0);
    until(&home, &["exec", "one", "--", "cat", TALK], "said")?;
    let stopped = run(&home, &["stop", "one", "--time", "0", "--json"])?.expect_code(0).json()?;
    assert_eq!((&stopped["kept"], &stopped["kept_for"]), (&"conversation".into(), &"conversation".into()));
    assert_eq!(copied_out(&home)?.1, "said [redacted]\n");
    let found = run(&home, &["prune", "--dry-run"])?.expect_code(0);
    assert!(!found.stdout.contains("conversation"), "it is new: {}", found.stdout);
    let found = run(&home, &["prune", "--dry-run", "--older-than", "0d"])?.expect_code(0);
    assert!(found.stdout.starts_with("1 kept conversation of one would be removed"), "{}", found.stdout);
    assert!(run(&home, &["list"])?.stdout.contains("kept (conversation)"));
    let _ = run(&home, &["prune", "--yes", "--older-than", "0d"])?.expect_code(0);
    assert_eq!(run(&home, &["list"])?.stdout, "");
    assert!(!home.bottle_home().join("transcripts/one").exists());
    Ok(())
}

#[test]
fn a_snapshot_restores_its_conversation() -> Result<()> {
    let Some(home) = with_a_claude("a_snapshot_restores_its_conversation")? else {
        return Ok(());
    };
    let arguments = ["start", "talker", "--label", "one", "-p", "sleep 600", "-q", "--detach"];
    let _ = run(&home, &arguments)?.expect_code(0);
    until(&home, &["exec", "one", "--", "cat", TALK], "said")?;
    let _ = run(&home, &["commit", "one", "-q"])?.expect_code(0);
    let _ =
        run(&home, &["exec", "one", "--", "/bin/sh", "-c", &format!("echo later >>{TALK}")])?.expect_code(0);
    let _ = run(&home, &["stop", "one", "--time", "0"])?.expect_code(0);
    let back = run(&home, &["resume", "one", "--snapshot", "--yes", "-p", "exit 0", "-q"])?.expect_code(0);
    assert_eq!(back.stdout, "continued\nsaid hunter2-hunter2-hunter2\n");
    // The secret is only in the files of the bottle and of its snapshot, not in other state.
    let searched = std::process::Command::new("grep")
        .args(["-rlF", "hunter2-hunter2", "--exclude-dir=home"])
        .arg(home.bottle_home())
        .output()?;
    assert_eq!(String::from_utf8_lossy(&searched.stdout), "");
    Ok(())
}
