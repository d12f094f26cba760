//! Tests `bottle supervise` on a terminal: the list of proposals is updated, and the user answers by key.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_protocol::queue::{Answer, Id, Proposal, Question, Status, Tool};
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;
use jiff::{SignedDuration, Timestamp};
use rustix::process::{Pid, Signal, kill_process};

use crate::home::{home, run};
use crate::supervise::{Asking, hosts, question};

const EMPTY: &str = "No pending proposals";

fn on_terminal(home: &TestHome) -> Result<Pty> {
    home.on_terminal(&["supervise"], 24, 80)
}

fn secret(number: u8) -> Question {
    question(number, Tool::EgressTokenAllow, "a request to api.example.com holds a GitHub token, 40 bytes")
}

fn push(number: u8) -> Question {
    question(number, Tool::GitleaksAllow, "a push to work holds 1 thing that may be a secret")
}

fn signal(pty: &Pty, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(pty.pid())?).context("a process")?;
    Ok(kill_process(pid, signal)?)
}

/// Asserts that the terminal is restored and shows nothing of `bottle supervise`.
#[track_caller]
fn assert_restored(pty: &Pty) -> Result<()> {
    let screen = pty.last_screen()?;
    assert!(pty.is_cooked()? && pty.left_on().is_empty(), "{:?}\n{screen}", pty.left_on());
    assert!(!screen.contains("q quits"), "{screen}");
    Ok(())
}

/// Exits `bottle supervise` with the key `q`.
fn leave(mut pty: Pty) -> Result<()> {
    pty.type_keys("q")?;
    assert_eq!(pty.wait_exit()?, 0, "{}", pty.screen());
    assert_restored(&pty)
}

#[test]
fn shows_new_proposals_and_answers_them_by_key() -> Result<()> {
    let home = home()?;
    let mut pty = on_terminal(&home)?;
    pty.wait_for(EMPTY)?;
    pty.wait_for("an agent wants to reach a host")?;
    let held = Asking::begin(&home, "one", secret(1))?;
    pty.wait_for("1 proposal waits for you")?;
    let screen = pty.wait_for("Enter details")?;
    for words in
        ["> 5 h", "one", "secret", "a request to api.example.com", "| finding: a GitHub token, 40 bytes"]
    {
        assert!(screen.contains(words), "{words:?} is missing:\n{screen}");
    }
    let pushed = Asking::begin(&home, "two", push(2))?;
    pty.wait_for("2 proposals wait for you")?;
    // Waits longer than the time for which keys are ignored after the list has changed.
    std::thread::sleep(Duration::from_secs(1));
    // The cursor is still on the first proposal.
    pty.type_keys("a")?;
    pty.wait_for("Reason to approve: _")?;
    pty.type_keys("a fixturr\x7fe")?;
    pty.wait_for("Reason to approve: a fixture_")?;
    pty.type_keys("\r")?;
    pty.wait_for("egress-token-allow of one was approved")?;
    let Answer::Decided(yes) = held.answered()? else { anyhow::bail!("it was decided") };
    assert_eq!((yes.status, yes.notes.as_deref()), (Status::Approved, Some("a fixture")));
    pty.wait_for("two pushes what may be a secret")?;
    // A key that is pressed immediately is ignored, because it could be meant for the previous proposal.
    pty.type_keys("r")?;
    pty.wait_for("has just moved here")?;
    pty.type_keys("r")?;
    pty.wait_for("Reason to reject:")?;
    pty.type_keys("take it out\r")?;
    pty.wait_for(EMPTY)?;
    let Answer::Decided(no) = pushed.answered()? else { anyhow::bail!("it was decided") };
    assert_eq!((no.status, no.notes.as_deref()), (Status::Rejected, Some("take it out")));
    leave(pty)
}

#[test]
fn reports_that_another_process_answered_first() -> Result<()> {
    let home = home()?;
    let asking = Asking::begin(&home, "one", secret(1))?;
    let mut pty = on_terminal(&home)?;
    pty.wait_for("1 proposal waits")?;
    pty.type_keys("\r")?;
    pty.wait_for("1 of 1")?;
    pty.type_keys("abecause")?;
    pty.wait_for("because_")?;
    let _ = run(&home, &["supervise", "reject", "0101", "--reason", "no"])?.expect_code(0);
    pty.wait_for("another process answered it")?;
    pty.wait_for(EMPTY)?;
    let Answer::Decided(response) = asking.answered()? else { anyhow::bail!("it was decided") };
    assert_eq!(response.status, Status::Rejected);
    leave(pty)
}

#[test]
fn shows_stale_proposals_and_dismisses_them() -> Result<()> {
    let home = home()?;
    let asking = Asking::begin(&home, "one", secret(1))?;
    let mut pty = on_terminal(&home)?;
    pty.wait_for("> 5 h")?;
    asking.give_up();
    pty.wait_for("> gone")?;
    pty.type_keys("a")?;
    pty.wait_for("no process waits for this answer")?;
    pty.wait_for("1 no longer waits")?;
    pty.type_keys("r")?;
    pty.wait_for("was dismissed")?;
    pty.wait_for(EMPTY)?;
    leave(pty)
}

/// Creates an editor that runs this shell script, in which `$1` is the path of the edited file.
fn editor(home: &TestHome, script: &str) -> Result<String> {
    let path = home.write("project/editor", &format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
    Ok(path.to_string_lossy().into_owned())
}

#[test]
fn edits_the_canonical_routes_and_never_loses_an_edit() -> Result<()> {
    for (script, words) in [
        ("exit 3", "the editor failed: exit status: 3"),
        ("true", "nothing was changed"),
        ("rm \"$1\"", "cannot read the edited copy"),
        ("printf '\\377\\376' > \"$1\"", "cannot read the edited copy"),
        ("echo '- host: 10.0.0.1' > \"$1\"", "this edit cannot be applied"),
        ("echo '- host: b.example' > \"$1\"; exit 1", "your edit is kept"),
        (": > \"$1\"", "the file was empty"),
        ("echo '- host: b.example' > \"$1\"", "this is your edit"),
    ] {
        let mut home = home()?;
        let editor = editor(&home, &format!("cp \"$1\" given; {script}"))?;
        home.env("VISUAL", editor).env("EDITOR", "false");
        let _asking = Asking::begin(&home, "one", hosts(1))?;
        let mut pty = on_terminal(&home)?;
        pty.wait_for("1 proposal waits")?;
        pty.type_keys("m")?;
        pty.wait_for(words)?;
        pty.wait_for("q quits")?;
        let given = fs::read_to_string(home.project().join("given"))?;
        assert!(given.starts_with("# Routes that one requests (egress-allow).\n"), "{given}");
        assert!(given.ends_with("- host: api.example.com\n  matches:\n  - methods:\n    - GET\n"), "{given}");
        leave(pty)?;
    }
    let mut home = home()?;
    home.env("EDITOR", "/no/such/editor");
    let _asking = Asking::begin(&home, "one", hosts(1))?;
    let mut pty = on_terminal(&home)?;
    pty.wait_for("1 proposal waits")?;
    pty.type_keys("m")?;
    pty.wait_for("the editor failed: exit status: 127")?;
    leave(pty)
}

#[test]
fn ctrl_c_in_the_editor_ends_neither_screen_nor_answer() -> Result<()> {
    let mut home = home()?;
    let editor = editor(&home, "trap '' INT; echo editing; read line; echo \"- host: $line\" > \"$1\"")?;
    home.env("EDITOR", editor);
    let _asking = Asking::begin(&home, "one", hosts(1))?;
    let mut pty = on_terminal(&home)?;
    pty.wait_for("1 proposal waits")?;
    pty.type_keys("m")?;
    pty.wait_for("editing")?;
    assert!(pty.is_cooked()?, "the editor has the terminal as it was");
    pty.type_keys("\x03")?;
    pty.type_keys("b.example\n")?;
    // The editor's failure is reported, and the edited text is kept.
    pty.wait_for("your edit is kept")?;
    leave(pty)
}

#[test]
fn a_failed_answer_is_reported_and_the_proposal_stays() -> Result<()> {
    let home = home()?;
    let _asking = Asking::begin(&home, "one", hosts(1))?;
    let mut pty = on_terminal(&home)?;
    pty.wait_for("the routes of this bottle are unavailable")?;
    pty.type_keys("\r")?;
    pty.wait_for("Request")?;
    pty.type_keys("a")?;
    let screen = pty.wait_for("there is no bottle named one")?;
    assert!(screen.contains("one asks for hosts"), "{screen}");
    leave(pty)
}

#[test]
fn a_signal_or_a_hang_up_restores_the_terminal() -> Result<()> {
    for (with, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::QUIT, 131)] {
        let home = home()?;
        let _asking = Asking::begin(&home, "one", secret(1))?;
        let mut pty = on_terminal(&home)?;
        pty.wait_for("1 proposal waits")?;
        pty.type_keys("\rabecause")?;
        pty.wait_for("because_")?;
        signal(&pty, with)?;
        assert_eq!(pty.wait_exit()?, code, "{with:?}: {}", pty.screen());
        assert_restored(&pty)?;
        assert_eq!(run(&home, &["supervise", "list"])?.stdout.lines().count(), 1, "it waits on");
    }
    let home = home()?;
    let mut pty = on_terminal(&home)?;
    pty.wait_for(EMPTY)?;
    pty.hang_up()?;
    assert_eq!(pty.wait_exit()?, 129);
    Ok(())
}

#[test]
fn follows_the_terminal_size_and_falls_back_to_a_list() -> Result<()> {
    let home = home()?;
    let _asking = Asking::begin(&home, "one", secret(1))?;
    let mut pty = on_terminal(&home)?;
    pty.wait_for("q quits")?;
    for (rows, columns) in [(10, 40), (5, 12), (2, 3), (40, 120), (24, 80)] {
        pty.resize(rows, columns)?;
        std::thread::sleep(Duration::from_millis(250));
        assert!(pty.broken_lines().is_empty(), "{rows}x{columns}: {:?}", pty.broken_lines());
    }
    pty.wait_for("q quits")?;
    leave(pty)?;
    let listed = |pty: &mut Pty| -> Result<()> {
        assert_eq!(pty.wait_exit()?, 0);
        let screen = pty.last_screen()?;
        assert!(screen.contains("01010101") && screen.contains("egress-token-allow"), "{screen}");
        assert!(!String::from_utf8_lossy(&pty.raw()).contains("\x1b[?1049h"), "{screen}");
        Ok(())
    };
    listed(&mut home.on_terminal(&["supervise", "--plain"], 24, 80)?)?;
    listed(&mut home.on_terminal(&["supervise", "list"], 24, 80)?)?;
    listed(&mut home.on_terminal(&["supervise"], 8, 80)?)?;
    let mut dumb = home.program(["supervise"])?;
    dumb.env("TERM", "dumb");
    listed(&mut Pty::spawn(dumb.command(), 24, 80)?)?;
    assert!(run(&home, &["supervise"])?.stdout.contains("01010101"), "without a terminal too");
    Ok(())
}

#[test]
fn pasted_text_decides_nothing() -> Result<()> {
    let home = home()?;
    let _asking = Asking::begin(&home, "one", secret(1))?;
    let mut pty = on_terminal(&home)?;
    pty.wait_for("1 proposal waits")?;
    pty.type_keys("\x1b[200~aarr\ryes\r\x1b[201~")?;
    pty.wait_for("pasted text decides nothing")?;
    pty.type_keys("a\x1b[200~a fixture\nof mine\x1b[201~")?;
    pty.wait_for("Reason to approve: a fixture of mine_")?;
    pty.type_keys("\x1b")?;
    pty.wait_for("Enter details")?;
    leave(pty)
}

/// The number of bottles with proposals, and the number of proposals of each bottle.
const BOTTLES: usize = 70;
const EACH: usize = 16;

/// Fills the queue with proposals of bottles whose keepers have exited.
fn full(home: &TestHome) -> Result<()> {
    for bottle in 0..BOTTLES {
        let directory = home.bottle_home().join(format!("queue/bottle-{bottle:02}"));
        fs::create_dir_all(directory.join("processed"))?;
        for number in 0..EACH {
            let arrival =
                Timestamp::now() - SignedDuration::from_secs(i64::try_from(bottle * EACH + number)?);
            let id = Id::from_random(u128::try_from(bottle * EACH + number)?.to_be_bytes());
            let proposal = Proposal {
                id: id.clone(),
                bottle_slug: format!("bottle-{bottle:02}").parse()?,
                tool: Tool::EgressAllow,
                proposed_file: format!(
                    "- host: h{number}.example.com\n  matches:\n  - methods:\n    - GET\n"
                ),
                justification: format!("question {number} of {bottle}"),
                arrival_timestamp: arrival,
                revision: Some(1),
                expires_at: arrival + SignedDuration::from_hours(23),
                asked_before: 0,
                excerpt: Vec::new(),
            };
            fs::write(directory.join(format!("{id}.proposal.json")), serde_json::to_vec_pretty(&proposal)?)?;
        }
    }
    Ok(())
}

#[test]
#[allow(clippy::print_stderr, reason = "figures for the test log")]
fn shows_a_full_queue_at_once_and_stays_responsive() -> Result<()> {
    let home = home()?;
    full(&home)?;
    let all = BOTTLES * EACH;
    let mut first: Vec<Duration> = Vec::new();
    let mut keys: Vec<Duration> = Vec::new();
    for _ in 0..5 {
        let begun = Instant::now();
        let mut pty = on_terminal(&home)?;
        pty.wait_for(&format!("{all} no longer wait"))?;
        pty.wait_for("q quits")?;
        first.push(begun.elapsed());
        pty.type_keys("\r")?;
        pty.wait_for(&format!("1 of {all}"))?;
        for number in 2..40 {
            let begun = Instant::now();
            pty.type_keys("n")?;
            pty.wait_for(&format!("{number} of {all}"))?;
            keys.push(begun.elapsed());
        }
        leave(pty)?;
    }
    first.sort_unstable();
    keys.sort_unstable();
    ensure!(first.len() == 5 && keys.len() == 190);
    eprintln!(
        "measured: {all} questions of {BOTTLES} bottles: start to first screen {:?} (median of 5); a key to its screen \
         {:?} (median), {:?} (99 of 100)",
        first[2], keys[95], keys[188],
    );
    Ok(())
}
