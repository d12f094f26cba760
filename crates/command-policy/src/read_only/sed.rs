//! Proves that a `sed` command only prints. Scripts can write files and run commands, so only a small part of the
//! language is accepted.

use super::awk::pattern_end;
use crate::call::Call;

/// The commands that only choose, change and print lines, and have no argument.
const PLAIN: &str = "=dDgGhHnNpPqQx";

pub(super) fn prove(call: &Call<'_>) -> Result<(), String> {
    let mut scripts = Vec::new();
    let mut operands = Vec::new();
    let mut words = call.arguments().iter();
    while let Some(word) = words.next() {
        let value = word.value.as_str();
        if value == "--" {
            operands.extend(words);
            break;
        }
        // GNU sed accepts options after operands, so that a file name may be an option.
        if word.begins_with_glob {
            return Err("gives sed a pattern whose names may be options: begin it with ./".to_owned());
        }
        match value {
            "-e" | "-ne" | "-Ee" | "-nEe" | "--expression" => {
                scripts.push(words.next().ok_or("gives sed an option without a value")?);
            }
            "--quiet" | "--silent" | "--regexp-extended" | "--separate" | "--unbuffered" | "--null-data" => {}
            "-" => operands.push(word),
            value if value.starts_with('-') => {
                if !value[1..].bytes().all(|letter| b"nErsuz".contains(&letter)) {
                    return Err(format!("gives sed the option {value}, which is not known to only read"));
                }
            }
            _ => operands.push(word),
        }
    }
    if scripts.is_empty() && !operands.is_empty() {
        scripts.push(operands.remove(0));
    }
    let is_plain = !scripts.is_empty() && scripts.iter().all(|script| !script.globs && prints(&script.value));
    if is_plain { Ok(()) } else { Err("runs a script of sed that is more than printing lines".to_owned()) }
}

/// Whether a script only prints.
fn prints(script: &str) -> bool {
    let mut rest = script;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\n', ';']);
        if rest.is_empty() {
            return true;
        }
        let Some(after) = after_address(rest).and_then(after_command) else { return false };
        rest = after.trim_start_matches([' ', '\t']);
        if !rest.is_empty() && !rest.starts_with([';', '\n']) {
            return false;
        }
    }
}

/// The rest of a script after the addresses of a command.
fn after_address(script: &str) -> Option<&str> {
    let mut rest = script;
    for _ in 0..2 {
        rest = match rest.chars().next()? {
            '/' => {
                let end = pattern_end(&rest[1..], '/')?;
                rest[end + 2..].trim_start_matches('I')
            }
            '$' => &rest[1..],
            _ => rest.trim_start_matches(|at: char| at.is_ascii_digit() || "~+".contains(at)),
        };
        rest = rest.trim_start_matches(' ');
        match rest.strip_prefix(',') {
            Some(second) => rest = second.trim_start_matches(' '),
            None => break,
        }
    }
    Some(rest.trim_start_matches('!').trim_start_matches(' '))
}

/// The rest of a script after a command.
fn after_command(script: &str) -> Option<&str> {
    let command = script.chars().next()?;
    let rest = &script[command.len_utf8()..];
    if PLAIN.contains(command) {
        return Some(rest.trim_start_matches(|at: char| matches!(command, 'q' | 'Q') && at.is_ascii_digit()));
    }
    if command != 's' {
        return None;
    }
    let sign = rest.chars().next().filter(|sign| "/|#,:@!%_".contains(*sign))?;
    let pattern = &rest[1..];
    let replacement = &pattern[pattern_end(pattern, sign)? + 1..];
    let flags = &replacement[replacement_end(replacement, sign)? + 1..];
    Some(flags.trim_start_matches(|at: char| "gpIi".contains(at) || at.is_ascii_digit()))
}

/// The length of the replacement of `s`, in which brackets have no meaning.
fn replacement_end(text: &str, end: char) -> Option<usize> {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '\n' => return None,
            _ if letter == end && !is_escaped => return Some(at),
            _ => is_escaped = letter == '\\' && !is_escaped,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_that_only_print() {
        for script in [
            "1,5p",
            "$p",
            "10q",
            "/a/,/b/p",
            "/a/!d",
            "s/a/b/",
            "s/a/b/gI; s|c/d|\\1&|2p",
            "s/[a-z]*/x/",
            "/^#/d;/^$/d",
            "1!G;h;$!d",
            "0~3p",
            "p\np",
        ] {
            assert!(prints(script), "{script}");
        }
    }

    #[test]
    fn scripts_that_may_do_more() {
        for script in [
            "w x",
            "1w x",
            "e x",
            "1e x",
            "s/a/b/e",
            "s/a/b/w x",
            "s/a/b/gw x",
            "s/a/b/;w x",
            "s/a/b/\nw x",
            "s/[/]/e/e",
            "s\\a\\b\\",
            "r x",
            "R x",
            "W x",
            "{p;w x\n}",
            "a\\\nw x",
            "pw x",
            "y/a/b/;e",
            "/a/I,/b/w x",
            "\\,a,w x",
            "v",
            "F",
            "s/a",
        ] {
            assert!(!prints(script), "{script}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_script_panics(script in r"[-a-zA-Z0-9/\\;!\n é|,$~\[\]:^]{0,40}") {
            let _ = prints(&script);
        }
    }
}
