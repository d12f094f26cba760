//! Parses the interpreter line of a script.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bottle_host::plain_file;

/// The number of bytes read from a script. The kernel reads 256 bytes, but pip uses a second line for longer
/// interpreter paths.
const READ_MAX: u64 = 1024;

/// The interpreter that a script names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Interpreter {
    /// The program at this path.
    At(PathBuf),
    /// The program with this name, which `env` looks up in `PATH`.
    Named(String),
}

/// Returns the interpreter of a script. Returns `None` if the file is not a script.
///
/// # Errors
/// When the file cannot be read, or is not regular.
pub(super) fn interpreter(file: &Path) -> io::Result<Option<Interpreter>> {
    let mut head = Vec::new();
    plain_file::open(file)?.take(READ_MAX).read_to_end(&mut head)?;
    Ok(parse(&head))
}

fn parse(head: &[u8]) -> Option<Interpreter> {
    let mut lines = head.strip_prefix(b"#!")?.split(|b| *b == b'\n');
    let first = std::str::from_utf8(lines.next()?).ok()?;
    // If the interpreter's path is too long or contains spaces, pip writes a shell script. The second line of this
    // shell script executes the interpreter.
    if let Some(path) = lines.next().and_then(|line| line.strip_prefix(b"'''exec' ")) {
        let path = std::str::from_utf8(path).ok()?;
        let path = match path.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next()?,
            None => path.split(' ').next()?,
        };
        return Some(Interpreter::At(path.into()));
    }
    let mut words = first.split_ascii_whitespace();
    let program = Path::new(words.next()?);
    if program.file_name()? != "env" {
        return Some(Interpreter::At(program.to_owned()));
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    Some(if name.contains('/') { Interpreter::At(name.into()) } else { Interpreter::Named(name.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_every_form_of_an_interpreter_line() {
        let at = |path: &str| Some(Interpreter::At(path.into()));
        let named = |name: &str| Some(Interpreter::Named(name.to_owned()));
        for (head, interpreter) in [
            ("#!/bin/sh\nexit", at("/bin/sh")),
            ("#! /bin/sh -eu\n", at("/bin/sh")),
            ("#!/usr/bin/env node\n", named("node")),
            ("#!/usr/bin/env -S node --no-warnings\n", named("node")),
            ("#!/usr/bin/env -S A=1 python3 -u\n", named("python3")),
            ("#!/usr/bin/env /opt/x\n", at("/opt/x")),
            ("#!/bin/sh\n'''exec' \"/long path/python\" \"$0\" \"$@\"\n' '''\n", at("/long path/python")),
            ("#!/bin/sh\n'''exec' /long/python \"$0\" \"$@\"\n", at("/long/python")),
            ("\x7fELF", None),
            ("#!", None),
            ("", None),
        ] {
            assert_eq!(parse(head.as_bytes()), interpreter, "{head:?}");
        }
    }
}
