//! `bottle rules`, and commands that are checked before they run.

use anyhow::{Result, ensure};

use crate::asking::running_bottle;
use crate::home::{home, run, snapshot, transcripts};

#[test]
fn shows_what_the_command_policy_decides() -> Result<()> {
    let home = home()?;
    home.write("home/.bottle/settings.yml", "commands: {allow: [{rule: command, prefix: [cargo, test]}]}\n")?;
    let mode = |mode, line| ["rules", "check", "--mode", mode, line];
    snapshot!(transcripts(
        &home,
        &[
            &["rules", "check", "make"],
            &mode("teenager", "ls -la | head -3"),
            &mode("teen", "cargo test -p x && make"),
            &mode("baby-sitter", "cargo test"),
            &mode("guard", "sudo rm -rf /"),
            &mode("teenager", "echo 'unfinished"),
            &mode("teenagr", "ls"),
            &["rules", "check", "--json", "rm -rf \"$X\"/"],
            &["rules", "list"],
        ],
    )?);
    Ok(())
}

#[test]
fn a_checked_command_runs_only_if_the_policy_allows_it() -> Result<()> {
    let Some(home) = running_bottle("a checked command", "linux", &[])? else { return Ok(()) };
    home.write("home/.bottle/settings.yml", "commands: {mode: teenager}\n")?;
    let checked = |script: &str| run(&home, &["exec", "one", "--checked", "--", "sh", "-c", script]);
    let read = checked("echo $((1 + 1)); cat ./* > /dev/null; ls")?.expect_code(125);
    // The value of an expression is known only when it runs.
    ensure!(read.transcript().contains("must be approved"), "{}", read.transcript());
    let _ = checked("ls > /dev/null && echo yes")?.expect_code(0);
    for (script, says) in [("touch made", "(command)"), ("rm -rf /", "(delete-root)"), ("sudo ls", "(sudo)")]
    {
        let refused = checked(script)?.expect_code(125);
        ensure!(refused.transcript().contains(says), "{}", refused.transcript());
    }
    let started = run(&home, &["process", "start", "one", "--checked", "--", "touch", "made"])?;
    ensure!(started.expect_code(1).transcript().contains("(command)"), "the policy applies to processes");
    let _ = run(&home, &["exec", "one", "--", "sh", "-c", "test ! -e made"])?.expect_code(0);
    home.write(
        "home/.bottle/settings.yml",
        "commands: {mode: teenager, allow: [{rule: command, prefix: [touch]}]}\n",
    )?;
    let _ = checked("touch made")?.expect_code(0);
    let _ = run(&home, &["exec", "one", "--", "test", "-e", "made"])?.expect_code(0);
    Ok(())
}
