//! Handles a panic while the screen is shown: restores the terminal, writes a log, and reports the log's
//! path.
//!
//! A panic message may contain an agent's text, so it must not be printed unescaped.

use std::backtrace::Backtrace;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;

use crate::console::error::CliError;
use crate::console::output::inert;
use crate::console::terminal;

/// The log file of this process's first panic, or the reason why the file could not be written.
static LOGGED: Mutex<Option<Result<PathBuf, String>>> = Mutex::new(None);

/// Installs a panic hook that restores the terminal and writes a log file below `home`. The hook prints
/// nothing.
pub(super) fn log_panics(home: &Path) {
    let directory = home.join("crashes");
    std::panic::set_hook(Box::new(move |panic| {
        terminal::restore();
        let logged = log(&directory, panic).map_err(|error| error.to_string());
        LOGGED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(logged);
    }));
}

fn log(directory: &Path, panic: &PanicHookInfo<'_>) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let now = Timestamp::now();
    let path =
        directory.join(format!("supervise-{}-{}.log", now.strftime("%Y%m%dT%H%M%SZ"), std::process::id()));
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
    let thread = std::thread::current();
    let text = format!(
        "bottle {} supervise, {now}, thread {}\n{}\n\n{}\n",
        env!("CARGO_PKG_VERSION"),
        thread.name().unwrap_or("without a name"),
        inert(&panic.to_string()),
        Backtrace::force_capture(),
    );
    file.write_all(text.as_bytes())?;
    Ok(path)
}

/// Returns the error that reports a panic. Returns `None` if there was no panic.
pub(super) fn error() -> Option<CliError> {
    let logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner).take()?;
    let whither = match logged {
        Ok(path) => format!("the log is {}", path.display()),
        Err(why) => format!("cannot write a log: {why}"),
    };
    Some(
        CliError::failed(format!("the screen crashed; {whither}"))
            .hint("no proposal is lost: `bottle supervise --plain` lists them"),
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use bottle_test_support::pty::Pty;

    use super::*;
    use crate::console::terminal::FullScreen;

    /// The environment variable that makes the test `crashes_on_its_terminal` panic while its screen is shown.
    const VICTIM: &str = "BOTTLE_TEST_SCREEN_CRASHES";

    #[test]
    #[ignore = "started by the test below, on a terminal of its own"]
    fn crashes_on_its_terminal() {
        let Ok(home) = std::env::var(VICTIM) else { return };
        log_panics(Path::new(&home));
        let mut full = FullScreen::enter().expect("a terminal").expect("a screen");
        full.draw(|frame| frame.render_widget("drawn", frame.area())).expect("drawn");
        let other = std::thread::spawn(|| panic!("on purpose \u{1b}[2Jand hostile"));
        other.join().expect_err("it panicked");
        full.draw(|frame| frame.render_widget("again", frame.area())).expect_err("given back");
        let error = error().expect("a crash");
        writeln!(io::stderr(), "{}", error.failure.message).expect("said");
    }

    #[test]
    fn a_crash_restores_the_terminal_and_names_its_log() {
        let home = tempfile::tempdir().expect("home");
        let mut victim = Command::new(std::env::current_exe().expect("this program"));
        victim.env(VICTIM, home.path()).env("TERM", "xterm").args(["--ignored", "--exact", "--nocapture"]);
        victim.arg("screens::supervise::crash::tests::crashes_on_its_terminal");
        let mut pty = Pty::spawn(victim, 24, 80).expect("a terminal");
        assert_eq!(pty.wait_exit().expect("an end"), 0, "{}", pty.screen());
        let screen = pty.last_screen().expect("the end of the output");
        assert!(screen.contains("the screen crashed; the log is"), "{screen}");
        assert!(!screen.contains("drawn") && !screen.contains("again"), "{screen}");
        assert!(pty.left_on().is_empty() && pty.is_cooked().expect("a terminal"), "{:?}", pty.left_on());
        let logs: Vec<_> = std::fs::read_dir(home.path().join("crashes")).expect("logs").collect();
        let [Ok(log)] = &logs[..] else { panic!("{logs:?}") };
        assert!(
            screen.replace('\n', "").contains(&log.file_name().to_string_lossy().into_owned()),
            "{screen}"
        );
        let text = std::fs::read_to_string(log.path()).expect("text");
        assert!(text.contains("on purpose \\u{1b}[2Jand hostile") && text.contains("crash.rs"), "{text}");
    }
}
