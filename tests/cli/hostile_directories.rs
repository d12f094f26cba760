//! Tests `--cwd` in directories whose files take up memory or time when they are read.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Program;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};

use crate::home::home;

/// The address space of a command in bytes. A program of a debug build with its threads uses about 1 GiB of it.
const MEMORY: u64 = 3_000_000_000;

/// The time limit for a command, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a command with a limit on its memory.
fn limited(home: &TestHome, arguments: &[&str]) -> Result<Program> {
    let program = home.program(arguments.iter().copied())?;
    let command = program.command();
    let mut limited = Program::at(Path::new("prlimit"));
    limited
        .arguments([format!("--as={MEMORY}")])
        .arguments([command.get_program()])
        .arguments(arguments.iter().copied());
    for (name, value) in command.get_envs() {
        limited.env(name, value.unwrap_or_default());
    }
    limited.directory(home.project()).deadline(PATIENCE);
    Ok(limited)
}

fn pipe(path: &Path) -> Result<()> {
    Ok(mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?)
}

#[test]
fn no_ignore_file_is_read_through_a_link_or_without_a_bound() -> Result<()> {
    let home = home()?;
    home.git(&["init", "-q"])?;
    home.write("project/sub/file", "x")?;
    let long = |path: &Path| -> Result<()> { Ok(fs::File::create(path)?.set_len(1 << 40)?) };
    let zero = |path: &Path| -> Result<()> { Ok(symlink("/dev/zero", path)?) };
    for place in [".gitignore", "sub/.gitignore", ".git/info/exclude"] {
        let path = home.project().join(place);
        for (make, is_read) in [(&zero as &dyn Fn(&Path) -> Result<()>, false), (&pipe, false), (&long, true)]
        {
            let _ = fs::remove_file(&path);
            make(&path)?;
            for start in [&["start", "hi", "--cwd", "--dry-run"][..], &["start", "hi", "--cwd", "-y"]] {
                let outcome = limited(&home, start)?.run()?;
                let outcome = outcome.expect_code(if is_read { 1 } else { 0 });
                if is_read {
                    ensure!(outcome.stderr.contains("has more than 1048576 bytes"), "{place}: {outcome:?}");
                } else {
                    let says = format!("--cwd ignores these rules, which are no regular files: {place}");
                    let shown = format!("{}{}", outcome.stdout, outcome.stderr);
                    ensure!(shown.contains(&says), "{place}: {outcome:?}");
                }
            }
        }
        fs::remove_file(&path)?;
    }
    Ok(())
}

#[test]
fn a_signal_ends_a_long_walk() -> Result<()> {
    let home = home()?;
    // Each file of rules takes more than a second to compile in a debug build.
    let pattern = "*b?[!a-z]".repeat(60);
    let rules: String = (0..1_800).map(|at| format!("a{at}{pattern}.rs\n")).collect();
    for at in 0..60 {
        home.write(&format!("project/{at}/.gitignore"), &rules)?;
    }
    for after in [Duration::from_secs(1), Duration::from_secs(9)] {
        let mut command: Command = limited(&home, &["start", "hi", "--cwd", "-y"])?.command();
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        std::thread::sleep(after);
        ensure!(child.try_wait()?.is_none(), "the walk was short");
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process")?;
        kill_process(pid, Signal::TERM)?;
        let sent = Instant::now();
        while child.try_wait()?.is_none() {
            if sent.elapsed() > PATIENCE {
                child.kill()?;
                anyhow::bail!("it goes on {PATIENCE:?} after the signal");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}
