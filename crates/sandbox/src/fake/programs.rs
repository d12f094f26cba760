//! Runs `bottle __fake-program NAME ARGS…`, which contains the programs that an agent can run on the fake backend.
//!
//! Each program does one thing, for tests of terminals, pipes, exit codes or environments.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

/// The names of all programs, as an agent's argv names them.
pub const NAMES: [&str; 12] = [
    "cat",
    "echo",
    "env",
    "exit",
    "false",
    "printf",
    "pwd",
    "read-line",
    "sleep",
    "spew",
    "true",
    "tty-size",
];

/// The exit code with which a shell reports an unknown command.
const NOT_FOUND: u8 = 127;

/// Runs the program that the first argument names.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    // A process of the fake backend has no pid namespace of its own. Without the parent-death signal, the process would
    // continue to run after its guest is killed.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if !parent_is_a_guest() {
        return ExitCode::FAILURE;
    }
    let mut arguments = arguments.into_iter();
    let name = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    match program(&name, &rest) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let line = format!("{}: {error}\n", name.to_string_lossy());
            // Standard error may already be closed.
            let _ = io::stderr().write_all(line.as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// Whether this process's parent is a guest. If the guest was killed before this process requested the parent-death
/// signal, this process receives no signal, but has another parent.
fn parent_is_a_guest() -> bool {
    let Some(parent) = rustix::process::getppid() else { return false };
    std::fs::read(format!("/proc/{parent}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).nth(1) == Some(b"__guest"))
}

fn program(name: &OsStr, arguments: &[String]) -> io::Result<u8> {
    let mut out = io::stdout().lock();
    let first = arguments.first().map(String::as_str);
    match name.to_str().unwrap_or_default() {
        "true" => {}
        "false" => return Ok(1),
        "exit" => return number(first),
        "echo" => writeln!(out, "{}", arguments.join(" "))?,
        "printf" => out.write_all(unescape(first.unwrap_or_default()).as_bytes())?,
        "pwd" => writeln!(out, "{}", std::env::current_dir()?.display())?,
        "env" => env(&mut out, arguments)?,
        "cat" => cat(&mut out, arguments)?,
        "read-line" => read_line(&mut out)?,
        "sleep" => sleep(first)?,
        "spew" => spew(&mut out, number(first)?)?,
        "tty-size" => {
            let size = rustix::termios::tcgetwinsize(rustix::stdio::stdin())?;
            writeln!(out, "{} {}", size.ws_col, size.ws_row)?;
        }
        other => {
            writeln!(io::stderr(), "{other}: no program of the fake backend")?;
            return Ok(NOT_FOUND);
        }
    }
    out.flush()?;
    Ok(0)
}

fn env(out: &mut impl Write, names: &[String]) -> io::Result<()> {
    for (name, value) in std::env::vars_os() {
        if names.is_empty() || names.iter().any(|wanted| name == wanted.as_str()) {
            writeln!(out, "{}={}", name.to_string_lossy(), value.to_string_lossy())?;
        }
    }
    Ok(())
}

fn cat(out: &mut impl Write, files: &[String]) -> io::Result<()> {
    if files.is_empty() {
        return copy(io::stdin().lock(), out);
    }
    for file in files {
        copy(std::fs::File::open(file)?, out)?;
    }
    Ok(())
}

/// Copies the input, and flushes after each read, so that a user at a terminal sees the output immediately.
fn copy(mut from: impl Read, out: &mut impl Write) -> io::Result<()> {
    let mut buffer = [0; 8192];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            read => {
                out.write_all(&buffer[..read])?;
                out.flush()?;
            }
        }
    }
}

/// Prompts for one line and echoes it.
fn read_line(out: &mut impl Write) -> io::Result<()> {
    write!(out, "? ")?;
    out.flush()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    writeln!(out, "got {}", line.trim_end())
}

fn sleep(seconds: Option<&str>) -> io::Result<()> {
    let seconds = Duration::try_from_secs_f64(number(seconds)?).map_err(io::Error::other)?;
    std::thread::sleep(seconds);
    Ok(())
}

/// Writes `bytes` bytes as numbered lines of 80 bytes.
fn spew(out: &mut impl Write, bytes: u64) -> io::Result<()> {
    let mut left = bytes;
    for number in 0_u64.. {
        let line = format!("{number:079}\n");
        let take = usize::try_from(left).map_or(line.len(), |left| left.min(line.len()));
        out.write_all(&line.as_bytes()[..take])?;
        left -= take as u64;
        if left == 0 {
            break;
        }
    }
    Ok(())
}

fn unescape(text: &str) -> String {
    let mut unescaped = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let plain = match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                Some('t') => '\t',
                Some('e') => '\x1b',
                Some('a') => '\x07',
                Some(other) => other,
                None => '\\',
            },
            other => other,
        };
        unescaped.push(plain);
    }
    unescaped
}

fn number<T: std::str::FromStr>(argument: Option<&str>) -> io::Result<T> {
    argument
        .and_then(|argument| argument.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it needs a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spew_writes_the_requested_number_of_bytes() {
        for bytes in [0, 1, 79, 80, 81, 1000] {
            let mut out = Vec::new();
            spew(&mut out, bytes).expect("written");
            assert_eq!(out.len() as u64, bytes);
        }
    }

    #[test]
    fn printf_decodes_escapes() {
        assert_eq!(unescape(r"a\nb\t\e[1m\\x\"), "a\nb\t\x1b[1m\\x\\");
    }
}
