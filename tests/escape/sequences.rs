//! Tests the output of an agent on a real terminal. The agent may draw text and colors, but may not control the
//! terminal.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;
use nix::libc;

use crate::attempts;

/// The detach keys.
const DETACH: &str = "\x1dd";

/// Escape sequences that make a terminal act or answer: introducer, body and terminator.
const OBEYED: [(&str, &str, &str); 20] = [
    ("\x1b]", "52;c;RVZJTA==", "\x07"),
    ("\x1b]", "52;p;RVZJTA==", "\x1b\\"),
    ("\x1b]", "52;c;?", "\x07"),
    ("\x1b]", "0;EVIL title", "\x07"),
    ("\x1b]", "2;EVIL title", "\x1b\\"),
    ("\x1b]", "9;EVIL note", "\x07"),
    ("\x1b]", "777;notify;EVIL;note", "\x07"),
    ("\x1b]", "1337;File=name=RVZJTA==;size=1:eA==", "\x07"),
    ("\x1b]", "11;?", "\x07"),
    ("\x1bP", "$qEVIL", "\x1b\\"),
    ("\x1bP", "+q4556494c", "\x1b\\"),
    ("\x1bP", "tmux;\x1b\x1b]52;c;RVZJTA==\x07", "\x1b\\"),
    ("\x1b_", "Ga=T,f=100,t=f;L2V0Yy9wYXNzd2Q=", "\x1b\\"),
    ("\x1b^", "EVIL private", "\x1b\\"),
    ("\x1bX", "EVIL string", "\x1b\\"),
    ("\x1bk", "EVIL screen", "\x1b\\"),
    ("\x1b[", "21t", ""),
    ("\x1b[", "6n", ""),
    ("\x1b[", ">c", ""),
    ("\x1b[", "?1;2;20$y", ""),
];

/// Each introducer with its single byte. The text encoding of that byte as a character is tested too.
const SHORT: [(&str, u8); 7] = [
    ("\x1b]", 0x9d),
    ("\x1bP", 0x90),
    ("\x1b_", 0x9f),
    ("\x1b^", 0x9e),
    ("\x1bX", 0x98),
    ("\x1bk", 0x9d),
    ("\x1b[", 0x9b),
];

/// The three encodings of a sequence: with the two-byte introducer, with the single byte, and with that byte's
/// character.
fn ways(begin: &str, body: &str) -> [Vec<u8>; 3] {
    let short = SHORT.iter().find(|(long, _)| *long == begin).map_or(0x9d, |(_, short)| *short);
    [
        [begin.as_bytes(), body.as_bytes()].concat(),
        [&[short][..], body.as_bytes()].concat(),
        [char::from(short).to_string().as_bytes(), body.as_bytes()].concat(),
    ]
}

/// A shell script that prints every encoding of every sequence, after a colored text and before a plain text.
fn script() -> String {
    let mut bytes = b"\x1b[31mred\x1b[0m ".to_vec();
    for (begin, body, end) in OBEYED {
        for way in ways(begin, body) {
            bytes.extend_from_slice(&way);
            bytes.extend_from_slice(end.as_bytes());
        }
    }
    let octal: String = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
    format!("printf '{octal}'; echo; echo the end")
}

/// The sequences of [`OBEYED`] that reached the terminal.
fn obeyed(pty: &Pty) -> Vec<String> {
    let raw = pty.raw();
    let reached = |way: &[u8]| raw.windows(way.len()).any(|part| part == way);
    let all = OBEYED.iter().flat_map(|(begin, body, _)| ways(begin, body));
    all.filter(|way| reached(way)).map(|way| way.escape_ascii().to_string()).collect()
}

/// Asserts that the output contains nothing that controls the terminal.
fn assert_drawn(pty: &Pty, what: &str) {
    assert_eq!(obeyed(pty), [""; 0], "{what}");
    let raw = String::from_utf8_lossy(&pty.raw()).into_owned();
    assert!(raw.contains("red"), "{what}: {raw:?}");
}

fn home(agent: &str, settings: &str) -> Result<TestHome> {
    let mut home = TestHome::new()?;
    home.write("home/.bottle/settings.yml", settings)?;
    home.bottle(
        "noisy",
        &format!(
            "---\nbackend: linux\nagent_provider: {{template: command, command: [/bin/sh, -c, {agent:?}]}}\n---\n"
        ),
    )?;
    home.agent("noisy", "---\nbottle: noisy\n---\n")?;
    Ok(home)
}

#[test]
fn agent_output_cannot_control_the_terminal() -> Result<()> {
    let script = script();
    let home = home(&format!("{script}; sleep 600"), "{}\n")?;
    if !home.runs("sequences in a terminal", "linux")? {
        return Ok(());
    }
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &script]);
    let outside = Pty::spawn(shell, 40, 100)?;
    outside.last_screen()?;
    assert_eq!(obeyed(&outside).len(), OBEYED.len() * 3, "the control: all of it gets to a terminal");

    let mut started = home.on_terminal(&["start", "noisy", "--yes", "--label", "demo"], 40, 100)?;
    started.wait_for("the end")?;
    assert_drawn(&started, "start");
    assert!(String::from_utf8_lossy(&started.raw()).contains("\x1b[31mred"), "colours pass");
    started.type_keys(DETACH)?;
    assert_eq!(started.wait_exit()?, 0);
    assert_drawn(&started, "what is said of a detached bottle");

    let mut attached = home.on_terminal(&["attach", "demo"], 40, 100)?;
    attached.wait_for("the end")?;
    assert_drawn(&attached, "attach, which shows what was there before");
    attached.type_keys(DETACH)?;
    attached.wait_exit()?;
    for command in [
        &["logs", "demo"][..],
        &["exec", "demo", "--", "/bin/sh", "-c", &script],
        &["exec", "-t", "demo", "--", "/bin/sh", "-c", &script],
        &["exec", "demo", "--", "/bin/sh", "-c", &format!("({script}) >&2")],
    ] {
        let mut pty = home.on_terminal(command, 40, 100)?;
        assert_eq!(pty.wait_exit()?, 0, "{}", pty.screen());
        assert!(pty.last_screen()?.contains("the end"), "{}", pty.screen());
        assert_drawn(&pty, command[0]);
    }
    let _ = home.program(["stop", "demo", "--time", "0"])?.run()?.expect_code(0);
    Ok(())
}

#[test]
fn only_allowed_terminal_sequences_pass() -> Result<()> {
    let script = script();
    let home = home(&script, "terminal: {pass: [clipboard]}\n")?;
    if !home.runs("allowed sequences", "linux")? {
        return Ok(());
    }
    let mut pty = home.on_terminal(&["start", "noisy", "--yes"], 40, 100)?;
    pty.wait_exit()?;
    // The agent may set the clipboard but not read it.
    let passed = obeyed(&pty);
    assert_eq!(passed, ["\\x1b]52;c;RVZJTA==", "\\x1b]52;p;RVZJTA=="]);
    Ok(())
}

/// The program of an agent that injects a line into its terminal's input, with the ioctl requests `TIOCSTI` and
/// `TIOCLINUX`.
fn typist() -> String {
    format!(
        "{}for letter in b'echo typed\\n':\n\
         \x20 call('type', {ioctl}, 0, {sti}, bytes([letter]))\n\
         call('console', {ioctl}, 0, {linux}, b'\\x03')\n\
         print('the end', flush=True)\n",
        attempts::CALLS,
        ioctl = libc::SYS_ioctl,
        sti = libc::TIOCSTI,
        linux = libc::TIOCLINUX,
    )
}

#[test]
fn the_agent_cannot_type_into_the_users_terminal() -> Result<()> {
    if !attempts::possible("typing into the user's terminal") {
        return Ok(());
    }
    let mut home = TestHome::new()?;
    if !home.runs("typing into the user's terminal", "linux")? {
        return Ok(());
    }
    home.agent("typist", "---\nbottle: typist\n---\n")?;
    home.bottle(
        "typist",
        &format!(
            "---\nbackend: linux\nagent_provider: {{template: command, command: [/usr/bin/python3, -c, {:?}]}}\n---\n",
            typist()
        ),
    )?;
    // The user's shell continues after the agent ended. It would run a command that the agent typed into the terminal.
    let start = home.program(["start", "typist", "--yes"])?.command();
    let line = format!(
        "{} start typist --yes; echo back; read -r -t 1 typed; echo \"got <$typed>\"",
        start.get_program().to_string_lossy()
    );
    let mut shell = Command::new("/bin/bash");
    shell.args(["-c", &line]).current_dir(home.project()).env_clear();
    for (name, value) in start.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    let mut pty = Pty::spawn(shell, 40, 100)?;
    pty.patience(Duration::from_secs(60));
    pty.wait_for("got <>")?;
    let screen = pty.last_screen()?;
    let refused = screen.lines().filter(|line| line.trim_end().ends_with(" EPERM")).count();
    assert_eq!(refused, "echo typed\n".len() + 1, "{screen}");
    Ok(())
}
