//! What cannot be meant is refused with the next step, before anything is touched.

use anyhow::Result;

use crate::home::{home, run, snapshot, transcripts};

#[test]
fn the_help_lists_what_works() -> Result<()> {
    let home = home()?;
    snapshot!(transcripts(&home, &[&["--help"], &["start", "--help"], &["exec", "--help"]])?);
    Ok(())
}

#[test]
fn names_that_do_not_exist_are_answered_with_the_nearest() -> Result<()> {
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
        ],
    )?);
    Ok(())
}

#[test]
fn errors_are_json_when_data_is() -> Result<()> {
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
fn nothing_is_written_by_looking() -> Result<()> {
    let home = home()?;
    for arguments in [&["list"][..], &["list", "agents"], &["info", "hi"], &["start", "hi", "--dry-run"]] {
        let _ = run(&home, arguments)?.expect_code(0);
    }
    assert!(!home.bottle_home().join("state").exists());
    assert_eq!(std::fs::read_dir(home.runtime())?.count(), 0);
    Ok(())
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() -> Result<()> {
    use std::process::Stdio;
    let home = home()?;
    let mut child =
        home.program(["list", "agents"])?.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    drop(child.stdout.take());
    let output = child.wait_with_output()?;
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    Ok(())
}
