//! Tests a user at a terminal. Every command restores the terminal.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;
use rustix::process::{Pid, Signal, kill_process};

use crate::home::{bottle, home, keeper, run};
use crate::pull::with_git;

/// The keys that detach a user from a session by default.
const DETACH: &str = "\x1dd";

fn on_terminal(home: &TestHome, arguments: &[&str]) -> Result<Pty> {
    home.on_terminal(arguments, 24, 80)
}

fn signal(pty: &Pty, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pty.pid()).ok().and_then(Pid::from_raw);
    match pid {
        Some(pid) => Ok(kill_process(pid, signal)?),
        None => bail!("no process"),
    }
}

/// Waits until the terminal is in line mode, because `bottle` leaves raw mode just before it exits.
fn assert_restored(pty: &Pty) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    while !pty.is_cooked()? {
        assert!(Instant::now() < end, "the terminal is still raw:\n{}", pty.screen());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn home_with_prompting_agents() -> Result<TestHome> {
    let mut home = home()?;
    home.bottle("ask", &bottle("[read-line]"))?.agent("ask", "---\nbottle: ask\n---\n")?;
    home.bottle("size", &bottle("[tty-size]"))?.agent("size", "---\nbottle: size\n---\n")?;
    Ok(home)
}

#[test]
fn the_preflight_shows_the_plan_and_asks() -> Result<()> {
    let home = home()?;
    let mut pty = on_terminal(&home, &["start", "hi"])?;
    let screen = pty.wait_for("Start hi on fake? [y/N/e/?]")?;
    for words in ["weaker ", "does not isolate anything", "echo hi"] {
        assert!(screen.contains(words), "{words:?} is missing:\n{screen}");
    }
    pty.type_keys("\r")?;
    pty.wait_for("nothing was started")?;
    assert_eq!(pty.wait_exit()?, 0);
    assert_restored(&pty)?;
    assert!(!home.bottle_home().join("state").exists());
    Ok(())
}

#[test]
fn ctrl_c_in_the_preflight_starts_nothing() -> Result<()> {
    let home = home()?;
    let mut pty = on_terminal(&home, &["start", "hi"])?;
    pty.wait_for("[y/N/e/?]")?;
    pty.type_keys("\x03")?;
    assert_eq!(pty.wait_exit()?, 130);
    assert_restored(&pty)
}

#[test]
fn a_signal_in_the_preflight_restores_the_terminal() -> Result<()> {
    let home = home()?;
    let mut pty = on_terminal(&home, &["start", "hi"])?;
    pty.wait_for("[y/N/e/?]")?;
    signal(&pty, Signal::TERM)?;
    assert_eq!(pty.wait_exit()?, 143);
    assert_restored(&pty)
}

#[test]
fn asks_for_a_missing_secret_without_echo() -> Result<()> {
    let mut home = home()?;
    home.bottle(
        "needy",
        "---\nbackend: fake\nenv: {TOKEN: '?the token'}\nagent_provider: {template: command, command: [env, TOKEN]}\n---\n",
    )?;
    home.agent("needy", "---\nbottle: needy\n---\n")?;
    let mut pty = on_terminal(&home, &["start", "needy", "--yes"])?;
    pty.wait_for("the token: ")?;
    pty.type_keys("hunter2-hunter2\r")?;
    let screen = pty.wait_for("TOKEN=hunter2-hunter2")?;
    assert_eq!(screen.matches("hunter2").count(), 2, "it was echoed:\n{screen}");
    assert_eq!(pty.wait_exit()?, 0);
    assert_restored(&pty)
}

#[test]
fn an_agent_receives_keys_and_terminal_size() -> Result<()> {
    let home = home_with_prompting_agents()?;
    let mut pty = on_terminal(&home, &["start", "ask", "--yes"])?;
    pty.wait_for("? ")?;
    pty.type_keys("words\r")?;
    pty.wait_for("got words")?;
    assert_eq!(pty.wait_exit()?, 0);
    assert_restored(&pty)?;
    let mut pty = on_terminal(&home, &["start", "size", "--yes"])?;
    pty.wait_for("80 24")?;
    assert_eq!(pty.wait_exit()?, 0);
    Ok(())
}

#[test]
fn a_resize_reaches_the_bottle() -> Result<()> {
    let home = home_with_prompting_agents()?;
    let mut pty = on_terminal(&home, &["start", "ask", "--yes", "--label", "one"])?;
    pty.wait_for("? ")?;
    let mut other = on_terminal(&home, &["exec", "one", "-t", "--", "read-line"])?;
    other.wait_for("? ")?;
    other.resize(30, 100)?;
    other.type_keys("x\r")?;
    other.wait_for("got x")?;
    assert_eq!(other.wait_exit()?, 0);
    assert_restored(&other)?;
    pty.resize(31, 101)?;
    pty.type_keys("y\r")?;
    pty.wait_for("got y")?;
    assert_eq!(pty.wait_exit()?, 0);
    Ok(())
}

#[test]
fn detaches_and_attaches_again() -> Result<()> {
    let home = home_with_prompting_agents()?;
    let mut pty = on_terminal(&home, &["start", "ask", "--yes", "--label", "one"])?;
    pty.wait_for("? ")?;
    pty.type_keys(DETACH)?;
    pty.wait_for("`bottle attach one` returns to it")?;
    assert_eq!(pty.wait_exit()?, 0);
    assert_restored(&pty)?;

    let mut watcher = on_terminal(&home, &["attach", "one", "--read-only"])?;
    watcher.wait_for("? ")?;
    watcher.type_keys("not heard\r\x03")?;
    assert_eq!(watcher.wait_exit()?, 0);
    assert_restored(&watcher)?;

    let mut again = on_terminal(&home, &["attach", "one"])?;
    again.wait_for("? ")?;
    again.type_keys("heard\r")?;
    again.wait_for("got heard")?;
    assert_eq!(again.wait_exit()?, 0);
    assert_restored(&again)
}

#[test]
fn another_client_takes_over() -> Result<()> {
    let home = home_with_prompting_agents()?;
    let mut first = on_terminal(&home, &["start", "ask", "--yes", "--label", "one"])?;
    first.wait_for("? ")?;
    let mut second = on_terminal(&home, &["attach", "one"])?;
    second.wait_for("? ")?;
    first.wait_for("the session ended")?;
    first.wait_for("`bottle attach one`")?;
    assert_eq!(first.wait_exit()?, 0);
    assert_restored(&first)?;
    second.type_keys("mine\r")?;
    second.wait_for("got mine")?;
    assert_eq!(second.wait_exit()?, 0);
    Ok(())
}

#[test]
fn a_signal_restores_the_terminal_and_ends_the_bottle() -> Result<()> {
    let home = home_with_prompting_agents()?;
    let mut pty = on_terminal(&home, &["start", "ask", "--yes", "--label", "one"])?;
    pty.wait_for("? ")?;
    assert!(!pty.is_cooked()?);
    signal(&pty, Signal::TERM)?;
    pty.wait_for("stopping one")?;
    assert_eq!(pty.wait_exit()?, 143);
    assert_restored(&pty)?;
    let listed = run(&home, &["list"])?.stdout;
    assert!(!listed.contains("running"), "{listed}");
    Ok(())
}

#[test]
fn a_dead_keeper_restores_the_terminal_and_is_reported() -> Result<()> {
    let home = home_with_prompting_agents()?;
    let mut pty = on_terminal(&home, &["start", "ask", "--yes", "--label", "one"])?;
    pty.wait_for("? ")?;
    kill_process(keeper(&home)?, Signal::KILL)?;
    pty.wait_for("the bottle's keeper died")?;
    assert_eq!(pty.wait_exit()?, 125);
    assert_restored(&pty)?;
    let outcome = run(&home, &["cleanup", "--yes"])?.expect_code(0);
    assert!(outcome.stdout.contains("one was"), "{}", outcome.stdout);
    assert_eq!(run(&home, &["cleanup"])?.expect_code(0).stdout, "");
    Ok(())
}

/// Starts a session, adds a file to its workspace, and lets the agent exit. Returns when `bottle` asks what
/// to do with the unsaved work.
fn with_work(home: &TestHome) -> Result<Pty> {
    home.write("project/note", "remember\n")?;
    for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "begin"]] {
        home.git(arguments)?;
    }
    let mut pty = on_terminal(home, &["start", "ask", "--cwd", "--yes", "--label", "one"])?;
    pty.wait_for("? ")?;
    let _ = run(home, &["cp", "note", "one:more"])?.expect_code(0);
    pty.type_keys("words\r")?;
    pty.wait_for("There is unsaved work in one. [keep/pull/discard]")?;
    Ok(pty)
}

#[test]
fn unsaved_work_is_kept_by_default() -> Result<()> {
    for keys in ["\r", "k\r", "\x1b"] {
        let home = home_with_prompting_agents()?;
        let mut pty = with_work(&home)?;
        pty.type_keys(keys)?;
        pty.wait_for("`bottle resume one` starts it again")?;
        assert_eq!(pty.wait_exit()?, 0);
        assert_restored(&pty)?;
        assert!(run(&home, &["list"])?.stdout.contains("kept"), "{keys:?}");
    }
    Ok(())
}

#[test]
fn unsaved_work_is_discarded_on_request() -> Result<()> {
    let home = home_with_prompting_agents()?;
    let mut pty = with_work(&home)?;
    pty.type_keys("what\r")?;
    pty.wait_until("asked again", |screen| screen.matches("[keep/pull/discard]").count() == 2)?;
    pty.type_keys("discard\r")?;
    assert_eq!(pty.wait_exit()?, 0);
    assert_restored(&pty)?;
    assert_eq!(run(&home, &["list"])?.stdout, "");
    Ok(())
}

#[test]
fn a_failed_pull_asks_about_unsaved_work_again() -> Result<()> {
    let home = home_with_prompting_agents()?;
    let mut pty = with_work(&home)?;
    // Without a repository, no further pull is offered.
    std::fs::remove_dir_all(home.project().join(".git"))?;
    pty.type_keys("p\r")?;
    pty.wait_for("error: ")?;
    pty.wait_for("There is unsaved work in one. [keep/discard]")?;
    signal(&pty, Signal::TERM)?;
    pty.wait_for("starts it again")?;
    pty.wait_exit()?;
    assert_restored(&pty)?;
    assert!(run(&home, &["list"])?.stdout.contains("kept"));
    Ok(())
}

/// After a pull that leaves out a part of the work, `bottle` does not ask again, because another pull would leave out
/// the same part.
#[test]
fn work_that_a_pull_leaves_out_is_kept_without_another_question() -> Result<()> {
    let test = "work_that_a_pull_leaves_out_is_kept_without_another_question";
    let Some(mut home) = with_git(test)? else { return Ok(()) };
    let script = "git init -q inner; touch inner/x new; echo rea''dy; read line";
    let provider = format!("{{template: command, command: [sh, -c, \"{script}\"]}}");
    home.bottle("nested", &format!("---\nbackend: linux\nagent_provider: {provider}\n---\n"))?;
    home.agent("nested", "---\nbottle: nested\n---\n")?;
    home.write("project/code", "one\n")?;
    for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "begin"]] {
        home.git(arguments)?;
    }
    let mut pty = on_terminal(&home, &["start", "nested", "--cwd", "--yes", "--label", "one"])?;
    pty.wait_for("ready")?;
    pty.type_keys("\r")?;
    pty.wait_for("[keep/pull/discard]")?;
    pty.type_keys("pull\r")?;
    pty.wait_for("the work that was not pulled is kept with one")?;
    assert_eq!(pty.wait_exit()?, 0);
    assert!(run(&home, &["list"])?.stdout.contains("kept"));
    assert_eq!(home.git(&["show", "bottle/one:new"])?, "");
    Ok(())
}

#[test]
fn a_hang_up_at_the_question_preserves_the_work() -> Result<()> {
    let home = home_with_prompting_agents()?;
    let pty = with_work(&home)?;
    signal(&pty, Signal::KILL)?;
    let end = Instant::now() + Duration::from_secs(60);
    while !run(&home, &["list"])?.stdout.contains("kept") {
        assert!(Instant::now() < end, "{}", run(&home, &["list"])?.stdout);
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// An agent on a terminal gets the variables with which the terminal describes itself; an agent on pipes gets
/// none of them, and no bottle gets a value that could draw on the terminal.
#[test]
fn the_terminals_variables_reach_an_agent_on_a_terminal() -> Result<()> {
    let mut home = home()?;
    home.bottle("env", &bottle("[env]"))?.agent("env", "---\nbottle: env\n---\n")?;
    home.env("TERM_PROGRAM", "WezTerm").env("WEZTERM_PANE", "7").env("COLORTERM", "24bit");
    home.env("VTE_VERSION", "1\x1b[2J").env("SSH_CONNECTION", "192.0.2.1 4000 192.0.2.2 22");
    let mut pty = home.on_terminal(&["start", "env", "--yes"], 100, 100)?;
    pty.wait_exit()?;
    let screen = pty.last_screen()?;
    for shown in ["TERM_PROGRAM=WezTerm", "WEZTERM_PANE=7", "COLORTERM=24bit"] {
        assert!(screen.contains(shown), "{shown} is missing:\n{screen}");
    }
    for hidden in ["VTE_VERSION", "SSH_CONNECTION"] {
        assert!(!screen.contains(hidden), "{screen}");
    }
    let piped = run(&home, &["start", "env", "--yes"])?.expect_code(0);
    assert!(!piped.stdout.contains("WEZTERM_PANE"), "{}", piped.stdout);
    Ok(())
}
