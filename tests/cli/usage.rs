//! Tests that invalid command lines are refused with a hint, before anything changes.

use anyhow::Result;

use crate::home::{home, run, snapshot, transcript, transcripts};

#[test]
fn help_lists_every_command() -> Result<()> {
    let home = home()?;
    snapshot!(transcripts(&home, &[&["--help"], &["start", "--help"], &["exec", "--help"]])?);
    Ok(())
}

#[test]
fn unknown_names_suggest_the_nearest() -> Result<()> {
    let home = home()?;
    snapshot!(transcripts(
        &home,
        &[
            &["start"],
            &["start", "hii"],
            &["start", "hi", "--bottle", "nope"],
            &["start", "hi", "--backend", "linx"],
            &["start", "hi", "--label", "日本"],
            &["start", "hi", "--detached"],
            &["attach", "nobody"],
            &["attach", "../x"],
            &["exec", "nobody", "--", "echo"],
            &["stop", "nobody"],
            &["logs", "nobody"],
            &["logs", "nobody", "--egress"],
            &["logs", "nobody", "--since", "10m"],
            &["probe", "nobody"],
            &["info", "nobody"],
            &["policy", "check", "GET", "https://example.com/"],
            &["policy", "check", "GET", "example.com", "--agent", "hi"],
            &["policy", "check", "GET", "https://example.com/", "--agent", "hi", "-H", "nonsense"],
            &["cp", "a", "b"],
            &["cp", "x:a", "y:b"],
            &["cp", "./absent", "nobody:"],
            &["nonsense"],
            &["rm"],
            &["run", "claude"],
            &["-q", "kill", "demo"],
            &["stpo"],
            &["help", "sh"],
            &["rm", "--json"],
        ],
    )?);
    Ok(())
}

#[test]
fn without_a_command_shows_the_commands_of_a_day_and_the_state() -> Result<()> {
    let home = home()?;
    let empty = transcripts(&home, &[&[]])?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "sleeper", "-q"])?.expect_code(0);
    let running = transcripts(&home, &[&[], &["--json", "-q"]])?;
    let _ = run(&home, &["stop", "sleeper", "-q"])?.expect_code(0);
    let (overview, json) = running.split_once("$ bottle --json").expect("two commands");
    snapshot!(format!("{empty}\n{overview}"));
    assert!(json.contains("\"slug\": \"sleeper\""), "{json}");
    Ok(())
}

#[test]
fn json_applies_to_errors_too() -> Result<()> {
    let home = home()?;
    snapshot!(transcripts(
        &home,
        &[
            &["start", "hii", "--json"],
            &["attach", "nobody", "--json"],
            &["exec", "nobody", "--json", "--", "echo"],
            &["list", "--json", "--nonsense"],
            &["start", "hi", "--", "--json"],
        ],
    )?);
    Ok(())
}

#[test]
fn read_only_commands_write_nothing() -> Result<()> {
    let home = home()?;
    for arguments in [&["list"][..], &["list", "agents"], &["info", "hi"], &["start", "hi", "--dry-run"]] {
        let _ = run(&home, arguments)?.expect_code(0);
    }
    assert!(!home.bottle_home().join("state").exists());
    assert_eq!(std::fs::read_dir(home.runtime())?.count(), 0);
    Ok(())
}

#[test]
fn a_closed_pipe_ends_the_command_quietly() -> Result<()> {
    use std::process::Stdio;
    let home = home()?;
    let mut child =
        home.program(["list", "agents"])?.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    drop(child.stdout.take());
    let output = child.wait_with_output()?;
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    Ok(())
}

#[test]
fn help_shows_commands_and_topics() -> Result<()> {
    let home = home()?;
    snapshot!(transcripts(
        &home,
        &[
            &["help", "exit-codes"],
            &["help", "snapshots", "rm"],
            &["help", "exit-code"],
            &["help", "nothing-like-it"]
        ]
    )?);
    let short = run(&home, &["help"])?.expect_code(0);
    for words in ["start ", "Topics:", "exit-codes"] {
        assert!(short.stdout.contains(words), "{words:?} is missing:\n{}", short.stdout);
    }
    Ok(())
}

#[test]
fn completion_offers_commands_and_names() -> Result<()> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "sleeper", "-q"])?.expect_code(0);
    let completed = |words: &[&str]| -> Result<String> {
        let mut program = home.program(["--", "bottle"].into_iter().chain(words.iter().copied()))?;
        program.env("BOTTLE_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
        Ok(program.run()?.expect_code(0).stdout)
    };
    assert_eq!(completed(&["sto"])?.trim(), "stop");
    assert_eq!(completed(&["stop", ""])?.lines().next(), Some("sleeper"));
    assert_eq!(completed(&["start", "nap"])?.trim(), "nap");
    assert!(completed(&["start", "--bottle", ""])?.contains("offline"));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&home, &["completions", shell])?.expect_code(0).stdout;
        assert!(script.contains("BOTTLE_COMPLETE"), "{shell}: {script}");
    }
    Ok(())
}

#[test]
fn a_real_shell_completes_names() -> Result<()> {
    let home = home()?;
    let program = home.program(["completions", "bash"])?;
    let script = program.run()?.expect_code(0).stdout;
    let directory = program.path().parent().expect("a directory").display().to_string();
    let lines = format!(
        "PATH={directory}:$PATH; {script}\nCOMP_WORDS=(bottle start --bottle off); COMP_CWORD=3; COMP_TYPE=9\n\
         _clap_complete_bottle bottle off --bottle; echo \"completed ${{COMPREPLY[*]}}\"\n"
    );
    let environment = program.command();
    let mut bash = std::process::Command::new("bash");
    bash.env_clear().envs(environment.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let answer = bash.arg("--norc").arg("-c").arg(lines).output()?;
    assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "completed offline", "{answer:?}");
    Ok(())
}

#[test]
fn manual_pages_are_written_for_every_command() -> Result<()> {
    let home = home()?;
    let _ = run(&home, &["man", "pages"])?.expect_code(0);
    let directory = home.project().join("pages");
    for page in ["bottle.1", "bottle-start.1", "bottle-snapshots-rm.1"] {
        let text = std::fs::read_to_string(directory.join(page))?;
        assert!(text.contains(".TH") && text.contains(".SH DESCRIPTION"), "{page}: {text}");
    }
    home.write("project/in-the-way", "a file")?;
    snapshot!(transcript(&home, &["man", "in-the-way/pages"])?);
    Ok(())
}
