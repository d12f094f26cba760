//! Tests missing credentials: the message says what the credential is for and where it is configured, and
//! never contains a value.

use anyhow::{Context, Result};
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;

use crate::home::{bottle, home, run, snapshot, transcript};

/// A value that is in every file and answer, and that no output may contain.
const VALUE: &str = "hunter2";

/// Adds an agent whose only route has this reference to a credential.
fn referring(home: &mut TestHome, name: &str, reference: &str) -> Result<()> {
    let routes = format!(
        "egress: {{routes: [{{host: api.example.com, auth: {{scheme: Bearer, token_ref: {reference:?}}}}}]}}"
    );
    let plain = bottle("[echo, started]");
    let plain = plain.strip_suffix("---\n").context("frontmatter")?;
    home.bottle(name, &format!("{plain}{routes}\n---\n"))?;
    home.agent(name, &format!("---\nbottle: {name}\n---\n"))?;
    Ok(())
}

#[test]
fn reports_each_missing_secret_with_its_purpose_and_hides_values() -> Result<()> {
    let mut home = home()?;
    home.write("home/empty", "\n")?;
    home.write("home/giant", &VALUE.repeat(20_000))?;
    std::fs::write(home.home().join("binary"), [0xff, 0xfe, b'h'])?;
    home.write("home/directory/file", VALUE)?;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        home.home().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )?;
    let mut text = String::new();
    for (name, reference) in [
        ("unset", "EXAMPLE_TOKEN"),
        ("absent", "file:~/absent"),
        ("empty", "file:~/empty"),
        ("giant", "file:~/giant"),
        ("binary", "file:~/binary"),
        ("directory", "file:~/directory"),
        ("pipe", "file:~/pipe"),
        ("no-such-command", "cmd:no-such-program-of-mine show"),
        ("failing-command", "cmd:sh -c 'echo hunter2; exit 3'"),
        ("silent-command", "cmd:true"),
        ("endless-command", "cmd:yes hunter2"),
        ("bad-reference", "file:relative"),
        ("no-reference", "hunter2 with spaces"),
    ] {
        referring(&mut home, name, reference)?;
        text += &format!("{reference}\n{}\n", transcript(&home, &["start", name, "--label", "one", "-q"])?);
        let state = home.bottle_home().join("state");
        assert!(std::fs::read_dir(state).map_or(0, Iterator::count) == 0, "{reference}: {text}");
    }
    assert_eq!(text.matches(VALUE).count(), 3, "only where this test says what it tries:\n{text}");
    snapshot!(text);
    Ok(())
}

#[test]
fn reports_unusable_secret_references_in_the_home() -> Result<()> {
    let mut home = home()?;
    referring(&mut home, "unset", "EXAMPLE_TOKEN")?;
    let mut text = String::new();
    for kept in [
        "EXAMPLE_TOKEN: hunter2\n",
        "EXAMPLE_TOKEN: file:relative\n",
        "EXAMPLE_TOKEN: [hunter2]\n",
        "EXAMPLE_TOKEN: file:~/absent\n",
        "hunter2\n",
    ] {
        home.write("home/.bottle/secrets.yml", kept)?;
        let kept = kept.replace(VALUE, "SECRET");
        text += &format!("{kept}{}\n", transcript(&home, &["start", "unset", "-q"])?);
    }
    assert!(!text.contains(VALUE), "{text}");
    snapshot!(text);
    Ok(())
}

#[test]
fn cancelling_a_secret_prompt_starts_nothing() -> Result<()> {
    let mut home = home()?;
    referring(&mut home, "unset", "EXAMPLE_TOKEN")?;
    for keys in ["\x03", "\x1b", "\r"] {
        let mut pty = Pty::spawn(home.program(["start", "unset", "--yes"])?.command(), 24, 100)?;
        pty.wait_for("EXAMPLE_TOKEN")?;
        pty.type_keys(keys)?;
        assert_eq!(pty.wait_exit()?, 130, "{keys:?}");
        let screen = pty.last_screen()?;
        assert!(screen.contains("no value was given"), "{screen}");
        assert!(!home.bottle_home().join("state").exists());
    }
    // An invalid reference that the user enters is not saved.
    let mut pty = Pty::spawn(home.program(["start", "unset", "--yes"])?.command(), 24, 100)?;
    pty.wait_for("EXAMPLE_TOKEN")?;
    pty.type_keys("file:~/absent\r")?;
    assert_eq!(pty.wait_exit()?, 2);
    assert!(!home.bottle_home().join("secrets.yml").exists());
    let listed = run(&home, &["list"])?;
    listed.stdout.is_empty().then_some(()).context("nothing was started")
}

#[test]
fn the_most_detailed_log_shows_spans_and_no_secret() -> Result<()> {
    let mut home = home()?;
    let secrets = ["f2c9d1e87a6b4c30f2c9", "sk-ant-api03-0123456789abcdef"];
    home.bottle(
        "keen",
        "---\nbackend: fake\nagent_provider: {template: command, command: [sleep, \"60\"]}\nenv: {HELD: $HELD}\n\
         egress: {routes: [{host: api.example.com, auth: {scheme: Bearer, token_ref: TOKEN}}]}\n---\n",
    )?;
    home.agent("keen", "---\nbottle: keen\n---\n")?;
    home.env("TOKEN", secrets[0]).env("HELD", secrets[1]).env("RUST_LOG", "trace");
    let mut logs = String::new();
    for command in [
        &["start", "keen", "--label", "one", "--detach", "--yes", "--learn"][..],
        &["list", "-vv"],
        &["stop", "one"],
    ] {
        logs += &run(&home, command)?.expect_code(0).transcript();
    }
    assert!(logs.contains("TRACE"), "the commands log too:\n{logs}");
    let directory = home.bottle_home().join("state/one/logs");
    let keeper = std::fs::read_to_string(directory.join("keeper.log"))?;
    for span in ["keeper{slug=one}", "launch_phase{phase=Sidecars slug=one backend=\"fake\"}: "] {
        assert!(keeper.contains(span) && keeper.contains("TRACE"), "{span} is missing:\n{keeper}");
    }
    let mut directories = vec![directory];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            match path.is_dir() {
                true => directories.push(path),
                false => logs += &String::from_utf8_lossy(&std::fs::read(path)?),
            }
        }
    }
    for secret in secrets {
        assert!(!logs.contains(secret), "{logs}");
    }
    Ok(())
}

/// Each launch writes the secret files again, and a snapshot does not contain these files.
#[test]
fn secrets_are_files_that_only_the_agent_reads() -> Result<()> {
    let mut home = home()?;
    let bottle = "---\nbackend: linux\nenv: {TOKEN: $EXAMPLE_TOKEN, PLAIN: text}\n\
                  agent_provider: {template: command, command: [sleep, '600']}\n---\n";
    home.bottle("work", bottle)?.agent("work", "---\nbottle: work\n---\n")?;
    if !home.runs("secrets_are_files_that_only_the_agent_reads", "linux")? {
        return Ok(());
    }
    let script = "cd /run/bottle/secrets; stat -c '%a %F %n' . *; stat -f -c %T .; wc -c <TOKEN; \
                  test \"$(cat TOKEN)\" = \"$TOKEN\"; echo kept >/workspace/note";
    for (command, value) in [("start", "hunter2-hunter2"), ("resume", "hunter3")] {
        home.env("EXAMPLE_TOKEN", value);
        let name = if command == "start" { &["work", "--label", "one"][..] } else { &["one", "-y"] };
        let _ = run(&home, &[&[command, "--detach", "-q"], name].concat())?.expect_code(0);
        let shown = run(&home, &["exec", "one", "--", "sh", "-ec", script])?.expect_code(0).stdout;
        let expected = format!("700 directory .\n600 regular file TOKEN\ntmpfs\n{}\n", value.len());
        assert_eq!(shown, expected, "{command}");
        // The value arrives in parts. A value with less than eight characters is not replaced.
        let script = "printf hunt; sleep 0.2; echo \"${TOKEN#hunt}-b\"; echo \"$TOKEN\" >&2";
        let redacted = run(&home, &["exec", "--redact", "one", "--", "sh", "-c", script])?.expect_code(0);
        let replaced = if value.len() < 8 { value } else { "[REDACTED]" };
        assert_eq!(redacted.stdout, format!("{replaced}-b\n"));
        assert_eq!(redacted.stderr, format!("{replaced}\n"));
        let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
        let kept = run(&home, &["exec", "one", "--", "ls", "/run/bottle/secrets"])?;
        assert!(kept.stderr.contains("No such file"), "{}{}", kept.stdout, kept.stderr);
    }
    Ok(())
}
