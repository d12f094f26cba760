//! Measures the sandbox of the Linux backend in comparison with bubblewrap, with the same namespaces and
//! mounts.
//!
//! The sandbox is measured from its start until its pid 1 reports that it is ready. The measurement uses the check that
//! `bottle doctor` runs. Bubblewrap does not report when it is ready. Bubblewrap is therefore measured until the first
//! output of an `echo` in its sandbox. The time of an `echo` without bubblewrap is subtracted. The measurements
//! alternate. The goal is that the sandbox of the Linux backend is ready no later than bubblewrap.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_backend::Backend;
use bottle_host::Host;
use bottle_sandbox::linux::LinuxBackend;
use bottle_test_support::measure::interleaved;
use bottle_test_support::program::Program;

const ROUNDS: usize = 100;

/// The directories of the host that are visible in a bottle too.
const SYSTEM: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"];

pub(crate) fn run() -> Result<()> {
    let mut host = Host::of_this_process()?;
    Program::bottle()?.path().clone_into(&mut host.program);
    let backend = LinuxBackend::new(&host);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ours = || -> Result<Duration> {
        let started = Instant::now();
        let check = runtime.block_on(backend.check());
        let took = started.elapsed();
        ensure!(check.usable, "the linux backend cannot run here: {:?}", check.findings);
        Ok(took)
    };
    let Some(bwrap) = find("bwrap") else {
        println!("skipped: bwrap is not installed, so there is nothing to compare with");
        return Ok(());
    };
    let samples = interleaved(
        ROUNDS,
        vec![
            ("bottle's sandbox, ready", Box::new(ours)),
            ("bwrap, echo inside", Box::new(|| first_word(&mut bubblewrap(&bwrap)))),
            ("echo alone", Box::new(|| first_word(&mut Command::new("/bin/echo")))),
        ],
    )?;
    for sample in &samples {
        println!("{}", sample.line());
    }
    let [ours, bwrap, echo] = samples.iter().map(|sample| sample.median()).collect::<Vec<_>>()[..] else {
        return Ok(());
    };
    let ratio = ours.as_secs_f64() / bwrap.saturating_sub(echo).as_secs_f64();
    println!("{ratio:.2} × bwrap's sandbox; goal 1.0 ×");
    println!("ratio: bwrap / sandbox {:.3}", ratio.recip());
    Ok(())
}

/// Returns a bubblewrap command, configured as similarly to a bottle as possible.
fn bubblewrap(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--unshare-all", "--unshare-user", "--new-session", "--uid", "1000", "--gid", "1000"]);
    for directory in SYSTEM.into_iter().filter(|directory| Path::new(directory).exists()) {
        command.args(["--ro-bind", directory, directory]);
    }
    command.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"]);
    command.args(["--tmpfs", "/home", "--tmpfs", "/workspace", "--cap-drop", "ALL", "--", "/bin/echo"]);
    command
}

/// Runs `command`, which is an `echo`. Returns the time from the start of the command until its first output.
fn first_word(command: &mut Command) -> Result<Duration> {
    let started = Instant::now();
    let mut child = command.arg("ready").stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut output = child.stdout.take().context("its output")?;
    let mut word = [0; 6];
    output.read_exact(&mut word).context("no output")?;
    let took = started.elapsed();
    ensure!(child.wait()?.success(), "{command:?} failed");
    Ok(took)
}

fn find(program: &str) -> Option<PathBuf> {
    ["/usr/bin", "/usr/local/bin", "/bin"]
        .map(|directory| Path::new(directory).join(program))
        .into_iter()
        .find(|p| p.is_file())
}
