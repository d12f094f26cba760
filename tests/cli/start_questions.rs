//! Tests `bottle start` without arguments on a terminal: the user selects from lists, and may cancel at any
//! time.

use anyhow::Result;
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;

use crate::home::{bottle, run, snapshot};

const UP: &str = "\x1b[A";
const DOWN: &str = "\x1b[B";
const LEFT: &str = "\x1b[D";
const SHIFT_TAB: &str = "\x1b[Z";

/// Returns a home with agents whose manifests are valid, incomplete or invalid, and with bottles that extend
/// each other.
fn home() -> Result<TestHome> {
    let mut home = TestHome::new()?;
    home.bottle("hello", &bottle("[echo, hello]"))?;
    home.bottle("base", "---\n# What all of them have.\nenv: {ONE: '1'}\n---\n")?;
    home.bottle("more", "---\nextends: base\nenv: {TWO: '2'}\n---\nMore of it.\n")?;
    home.bottle("last", "---\nenv: {ONE: last}\n---\n")?;
    home.bottle("env", &bottle("[env, ONE, TWO]"))?;
    home.agent("greeter", "---\nbottle: hello\n---\n# Greeter\n\nSays hello and goes.\n")?;
    home.agent("loose", "---\n# Has no bottle of its own.\n---\n")?;
    home.agent("torn", "---\nbottel: hello\n---\n")?;
    Ok(home)
}

#[test]
fn selects_an_agent_by_typing_and_starts_it() -> Result<()> {
    let home = home()?;
    let mut pty = home.on_terminal(&["start"], 24, 80)?;
    pty.wait_for("Which agent?")?;
    // The screen is complete when it shows its last line.
    let screen = pty.wait_for("Esc cancels")?;
    for words in ["> greeter", "Greeter", "torn", "bottel"] {
        assert!(screen.contains(words), "{words:?} is missing:\n{screen}");
    }
    pty.type_keys("greet")?;
    pty.wait_for("1 of ")?;
    pty.type_keys("\r")?;
    pty.wait_for("Which bottles for greeter, in order?")?;
    // The bottle that the agent's manifest names is preselected.
    pty.wait_for("1 hello")?;
    pty.type_keys("\r")?;
    pty.wait_for("Its name, or Enter")?;
    pty.type_keys("Morning greeting\r")?;
    pty.wait_for("The colour of its name?")?;
    pty.type_keys("green\r")?;
    let screen = pty.wait_for("Start greeter on fake? [y/N/e/?]")?;
    assert!(!screen.contains("Which agent?"), "the list is gone:\n{screen}");
    pty.type_keys("y\r")?;
    pty.wait_for("hello")?;
    assert_eq!(pty.wait_exit()?, 0);
    assert!(pty.is_cooked()?);
    Ok(())
}

#[test]
fn selects_bottles_in_order() -> Result<()> {
    let home = home()?;
    let mut pty = home.on_terminal(&["start", "loose"], 24, 80)?;
    pty.wait_for("Which bottles for loose, in order?")?;
    pty.type_keys("more")?;
    pty.wait_for("layers: base, more")?;
    pty.type_keys(" \x15last")?;
    pty.wait_for("> last")?;
    pty.type_keys(&format!(" {LEFT}\x15env"))?;
    pty.wait_for("> env")?;
    pty.type_keys("\t")?;
    pty.wait_for("bottom layer first: last, more, env")?;
    // A second Tab changes nothing, and says so.
    pty.type_keys("\t")?;
    let screen = pty.wait_for("env is already number 3; Shift-Tab removes it")?;
    assert!(screen.contains("bottom layer first: last, more, env"), "{screen}");
    pty.type_keys(SHIFT_TAB)?;
    pty.wait_until("`env` removed", |screen| !screen.contains("more, env"))?;
    pty.type_keys("\t")?;
    pty.wait_for("bottom layer first: last, more, env")?;
    pty.type_keys("\r")?;
    pty.wait_for("[y/N/e/?]")?;
    let said = String::from_utf8_lossy(&pty.raw()).into_owned();
    assert!(said.contains("bottle: bottles last, more, env"), "{said}");
    pty.type_keys("y\r")?;
    // `more` is above `last`, so its parent `base` overrides `last`.
    pty.wait_for("ONE=1")?;
    pty.wait_for("TWO=2")?;
    assert_eq!(pty.wait_exit()?, 0);
    Ok(())
}

#[test]
fn cancelling_any_question_starts_nothing_and_restores_the_screen() -> Result<()> {
    for keys in [
        &["\x1b"][..],
        &["\x03"],
        &["\r", "\x1b"],
        &["\r", "\r", "\x1b"],
        &["\r", "\r", "name\r", "\x03"],
        &["\r", "\r", "name\r", "\r", "\x03"],
    ] {
        let home = home()?;
        let mut pty = home.on_terminal(&["start"], 24, 80)?;
        let questions =
            ["Which agent?", "Which bottles", "Its name, or Enter", "The colour of its name?", "[y/N/e/?]"];
        for (question, key) in questions.iter().zip(keys) {
            pty.wait_for(question)?;
            pty.type_keys(key)?;
        }
        assert_eq!(pty.wait_exit()?, 130, "{keys:?}");
        assert!(pty.is_cooked()?, "{keys:?}");
        let screen = pty.wait_for("nothing was started")?;
        assert!(!screen.contains("Esc cancels"), "{keys:?}:\n{screen}");
        assert!(!home.bottle_home().join("state").exists(), "{keys:?}");
    }
    Ok(())
}

#[test]
fn a_broken_agent_reports_its_error_when_selected() -> Result<()> {
    let home = home()?;
    let mut pty = home.on_terminal(&["start"], 24, 80)?;
    pty.wait_for("Which agent?")?;
    pty.type_keys("torn\r")?;
    let screen = pty.wait_for("bottel")?;
    assert_eq!(pty.wait_exit()?, 3, "{screen}");
    assert!(pty.is_cooked()?);
    Ok(())
}

#[test]
fn a_signal_in_the_picker_restores_the_terminal() -> Result<()> {
    let home = home()?;
    let mut pty = home.on_terminal(&["start"], 24, 80)?;
    pty.wait_for("Which agent?")?;
    let pid = i32::try_from(pty.pid())?;
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).expect("a pid"),
        rustix::process::Signal::TERM,
    )?;
    assert_eq!(pty.wait_exit()?, 143);
    assert!(pty.is_cooked()?);
    pty.wait_until("no list", |screen| !screen.contains("Which agent?"))?;
    Ok(())
}

#[test]
fn the_picker_follows_the_terminal_size() -> Result<()> {
    let home = home()?;
    let mut pty = home.on_terminal(&["start"], 12, 60)?;
    pty.wait_for("Which agent?")?;
    pty.type_keys(&format!("{UP}{DOWN}{UP}"))?;
    pty.wait_for("> torn")?;
    assert!(!pty.screen().contains("  greeter"), "too low for all:\n{}", pty.screen());
    pty.resize(24, 100)?;
    pty.wait_until("all of the list, the cursor where it was, the keys below", |screen| {
        screen.contains("  greeter")
            && screen.contains("> torn")
            && screen.trim_end().ends_with("Esc cancels")
    })?;
    Ok(())
}

#[test]
fn a_dumb_terminal_is_asked_in_lines() -> Result<()> {
    let home = home()?;
    let mut dumb = home.program(["start"])?;
    dumb.env("TERM", "dumb");
    // The second terminal is too small for a list, so the questions are also asked in lines.
    for mut pty in [Pty::spawn(dumb.command(), 24, 80)?, home.on_terminal(&["start"], 8, 100)?] {
        pty.wait_for("Which agent? [1-")?;
        pty.type_keys("greeter\r")?;
        pty.wait_for("in order? hello? [y/N]")?;
        pty.type_keys("y\r")?;
        pty.wait_for("Its name, or Enter")?;
        pty.type_keys("\r")?;
        pty.wait_for("Start greeter on fake?")?;
        pty.type_keys("y\r")?;
        pty.wait_for("hello")?;
        assert_eq!(pty.wait_exit()?, 0);
    }
    Ok(())
}

#[test]
fn cancelling_a_question_in_lines_starts_nothing() -> Result<()> {
    for key in ["\x1b", "\x03"] {
        let home = home()?;
        let mut pty = home.on_terminal(&["start", "greeter"], 8, 100)?;
        pty.wait_for("[y/N/e/?]")?;
        pty.type_keys("e\r")?;
        pty.wait_for("in order? hello? [y/N]")?;
        pty.type_keys(key)?;
        assert_eq!(pty.wait_exit()?, 130, "{key:?}");
        let screen = pty.last_screen()?;
        assert!(screen.contains("nothing was started"), "{screen}");
        assert!(!screen.contains("[1-"), "it asked on:\n{screen}");
        assert!(pty.is_cooked()?);
    }
    Ok(())
}

#[test]
fn asks_again_for_a_taken_name() -> Result<()> {
    let mut home = home()?;
    home.bottle("nap", &bottle("[sleep, \"60\"]"))?.agent("nap", "---\nbottle: nap\n---\n")?;
    let outcome = run(&home, &["start", "nap", "--label", "taken", "--detach", "--yes"])?;
    assert_eq!(outcome.code, 0, "{}", outcome.transcript());
    let mut pty = home.on_terminal(&["start"], 24, 80)?;
    pty.wait_for("Which agent?")?;
    pty.type_keys("greeter\r")?;
    pty.wait_for("Which bottles")?;
    pty.type_keys("\r")?;
    pty.wait_for("Its name, or Enter")?;
    pty.type_keys("Taken\r")?;
    pty.wait_for("There is a bottle named taken; another name, or Enter:")?;
    pty.type_keys("\x1b")?;
    assert_eq!(pty.wait_exit()?, 130);
    Ok(())
}

#[test]
fn without_a_terminal_a_missing_agent_is_an_error() -> Result<()> {
    let home = home()?;
    snapshot!(crate::home::transcript(&home, &["start"])?);
    Ok(())
}

#[test]
fn the_preflight_shows_details_and_offers_another_choice() -> Result<()> {
    let mut home = home()?;
    home.agent("greeter", "---\nbottle: hello\nskills: [review]\n---\n")?;
    home.write("home/.bottle/skills/review/SKILL.md", "words\n")?;
    let mut pty = home.on_terminal(&["start", "greeter"], 60, 100)?;
    let screen = pty.wait_for("Start greeter on fake? [y/N/e/?]")?;
    for words in [
        "bottles   hello",
        "runs      echo hello on a terminal",
        "skills    review: 1 file, 6 B, from ~/.bottle/skills/review",
        "reaches   nothing",
        "an empty directory",
    ] {
        assert!(screen.contains(words), "{words:?} is missing:\n{screen}");
    }
    assert!(!screen.contains("pids: 4096"), "only what decides:\n{screen}");
    pty.type_keys("?\r")?;
    pty.wait_for("pids: 4096")?;
    pty.wait_until("asked again", |screen| screen.matches("[y/N/e/?]").count() == 2)?;
    pty.type_keys("e\r")?;
    pty.wait_for("1 hello")?;
    pty.type_keys("env")?;
    pty.wait_for("> env")?;
    pty.type_keys(" \x15more")?;
    pty.wait_for("layers: base, more")?;
    pty.type_keys(" \r")?;
    pty.wait_for("Its name, or Enter")?;
    pty.type_keys("again\r")?;
    pty.wait_for("The colour of its name?")?;
    pty.type_keys("\r")?;
    let screen = pty.wait_for("bottles   hello, env, more")?;
    assert!(screen.contains("layers    hello, env, base, more"), "{screen}");
    pty.wait_until("asked again", |screen| screen.matches("[y/N/e/?]").count() == 3)?;
    pty.type_keys("y\r")?;
    pty.wait_for("ONE=1")?;
    assert_eq!(pty.wait_exit()?, 0);
    Ok(())
}

#[test]
fn pickers_show_and_filter_every_script() -> Result<()> {
    let mut home = home()?;
    let words = [
        ("cyr", "Проверяет переводы"),
        ("cjk", "日本語の文書を直す"),
        ("rtl", "שלום עולם"),
        ("emo", "🦀 crabs e\u{301}"),
    ];
    for (name, about) in words {
        home.agent(name, &format!("---\nbottle: hello\n---\n# {about}\n"))?;
    }
    for (rows, columns) in [(24, 80), (12, 40)] {
        let mut pty = home.on_terminal(&["start"], rows, columns)?;
        pty.wait_for("Esc cancels")?;
        for (typed, name, about) in [
            ("ПЕРЕВ", "cyr", words[0].1),
            ("文書", "cjk", words[1].1),
            ("עולם", "rtl", words[2].1),
            ("🦀", "emo", words[3].1),
        ] {
            pty.type_keys(typed)?;
            let screen = pty.wait_for(&format!("> {name}"))?;
            pty.wait_until(about, |screen| screen.contains(about) && screen.contains("1 of "))?;
            assert!(pty.broken_lines().is_empty(), "{screen}");
            // Backspace deletes one character, however many bytes it has.
            pty.type_keys(&"\x7f".repeat(typed.chars().count()))?;
            pty.wait_for("greeter")?;
        }
        pty.type_keys("文書\r")?;
        pty.wait_for("Which bottles")?;
        pty.type_keys("\x1b")?;
        assert_eq!(pty.wait_exit()?, 130);
    }
    Ok(())
}

#[test]
fn selects_a_bottle_by_a_label_in_another_script() -> Result<()> {
    let mut home = home()?;
    home.bottle("nap", &bottle("[sleep, \"60\"]"))?.agent("nap", "---\nbottle: nap\n---\n")?;
    for label in ["Привет 1", "日本 2", "שלום 3"] {
        let _ = run(&home, &["start", "nap", "--label", label, "--detach", "--yes", "-q"])?.expect_code(0);
    }
    let mut pty = home.on_terminal(&["stop", "--time", "0"], 24, 80)?;
    pty.wait_for("Stop which bottle?")?;
    pty.type_keys("日本")?;
    pty.wait_for("1 of 3")?;
    let screen = pty.wait_for("日本 2")?;
    assert!(pty.broken_lines().is_empty(), "{screen}");
    pty.type_keys("\r")?;
    assert_eq!(pty.wait_exit()?, 0, "{}", pty.screen());
    let listed = run(&home, &["list"])?.stdout;
    assert!(listed.contains("日本 2 (nap)\tended") && listed.matches("\trunning").count() == 2, "{listed}");
    Ok(())
}
