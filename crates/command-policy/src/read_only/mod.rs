//! Proves that a command only reads files and prints.
//!
//! Each program for which a proof is possible has a table of the options with which the program only reads. An option
//! that is not in the table prevents the proof, so a new option of a program never weakens the policy. Words whose
//! value is unknown before the command runs prevent the proof too, because the value could be an option.

mod git;
mod tables;

use crate::call::Call;
use crate::text::Text;
use tables::{READERS, Reader};

/// The directories of the system's own programs.
const SYSTEM_DIRECTORIES: &[&str] = &["/bin/", "/usr/bin/"];

/// Proves that a command only reads.
///
/// # Errors
///
/// The reason why there is no proof, as a clause without a subject.
pub(crate) fn prove(call: &Call<'_>) -> Result<(), String> {
    let name = &call.argv[0].value;
    let is_of_system = !name.contains('/')
        || SYSTEM_DIRECTORIES.iter().any(|directory| name.strip_prefix(directory) == Some(call.program));
    if !is_of_system || *name != call.argv[0].value.to_lowercase() {
        return Err("runs a program that is not one of the system".to_owned());
    }
    if let Some(word) = call.argv.iter().find(|word| !word.is_known()) {
        return Err(format!("has a word that is known only when it runs: {}", word.value));
    }
    match call.program {
        "date" => {
            // For `date`, an operand `+FORMAT` selects the output format. Any other operand sets the clock.
            let options: Vec<Text> =
                call.arguments().iter().filter(|word| !word.value.starts_with('+')).cloned().collect();
            READERS
                .iter()
                .find(|reader| reader.name == "date")
                .map_or(Ok(()), |reader| reader.accepts(&options))
        }
        "git" => git::prove(call),
        "find" => find(call),
        "sed" => sed(call),
        "command" | "which" | "type" => queries(call),
        program => match READERS.iter().find(|reader| reader.name == program) {
            Some(reader) => reader.accepts(call.arguments()),
            None => Err(format!("runs {program}, which is not known to only read")),
        },
    }
}

impl Reader {
    /// Whether all arguments are options of the table, or operands that it accepts.
    fn accepts(&self, words: &[Text]) -> Result<(), String> {
        check_options(self.name, words, self.flags, self.valued, self.long, self.is_harmless).and_then(
            |operands| {
                if operands > self.operands {
                    return Err(format!("gives {} an operand that may be written", self.name));
                }
                Ok(())
            },
        )
    }
}

/// Checks options, and returns the number of operands. A word that begins with a file name pattern may become an
/// option. Such a word prevents the proof, unless all options of the program are harmless.
fn check_options(
    name: &str,
    words: &[Text],
    flags: &str,
    valued: &str,
    long: &[&str],
    is_harmless: bool,
) -> Result<usize, String> {
    let mut operands = 0;
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let value = word.value.as_str();
        if value == "--" {
            return Ok(operands + rest.count());
        }
        if word.begins_with_glob && !is_harmless {
            return Err(format!("gives {name} a pattern whose names may be options: begin it with ./"));
        }
        if !value.starts_with('-') || value == "-" {
            operands += 1;
            continue;
        }
        let takes_next = if value.starts_with("--") {
            long_option(name, value, long)?
        } else {
            short_options(name, value, flags, valued)?
        };
        if takes_next && rest.next().is_none() {
            return Err(format!("gives {name} the option {value} without a value"));
        }
    }
    Ok(operands)
}

/// Whether the next word is the value of a long option. A name in the table that ends with `=` has a value.
fn long_option(name: &str, value: &str, long: &[&str]) -> Result<bool, String> {
    let (option, has_value) = value.split_once('=').map_or((value, false), |(option, _)| (option, true));
    let listed = long.iter().find(|listed| listed.trim_end_matches('=') == &option[2..]);
    match listed {
        Some(listed) => Ok(listed.ends_with('=') && !has_value),
        None => Err(format!("gives {name} the option {option}, which is not known to only read")),
    }
}

/// Whether the next word is the value of the last option in a group of short options.
fn short_options(name: &str, value: &str, flags: &str, valued: &str) -> Result<bool, String> {
    // The option is a number, as in `head -20`.
    if value[1..].bytes().all(|byte| byte.is_ascii_digit()) && flags.contains('0') {
        return Ok(false);
    }
    for (index, letter) in value.char_indices().skip(1) {
        if valued.contains(letter) {
            return Ok(index + letter.len_utf8() == value.len());
        }
        if letter == '0' || !flags.contains(letter) {
            return Err(format!("gives {name} the option -{letter}, which is not known to only read"));
        }
    }
    Ok(false)
}

/// Proves that a `find` command has no action that deletes, executes or writes.
fn find(call: &Call<'_>) -> Result<(), String> {
    const TESTS: &[&str] = &[
        "-a",
        "-and",
        "-amin",
        "-anewer",
        "-atime",
        "-cmin",
        "-cnewer",
        "-ctime",
        "-daystart",
        "-depth",
        "-empty",
        "-executable",
        "-false",
        "-follow",
        "-fstype",
        "-gid",
        "-group",
        "-H",
        "-ilname",
        "-iname",
        "-inum",
        "-ipath",
        "-iregex",
        "-iwholename",
        "-L",
        "-links",
        "-lname",
        "-ls",
        "-maxdepth",
        "-mindepth",
        "-mmin",
        "-mount",
        "-mtime",
        "-name",
        "-newer",
        "-newermt",
        "-nogroup",
        "-noleaf",
        "-not",
        "-nouser",
        "-o",
        "-or",
        "-P",
        "-path",
        "-perm",
        "-print",
        "-print0",
        "-printf",
        "-prune",
        "-quit",
        "-readable",
        "-regex",
        "-regextype",
        "-samefile",
        "-size",
        "-true",
        "-type",
        "-uid",
        "-user",
        "-wholename",
        "-writable",
        "-xdev",
        "-xtype",
    ];
    for word in call.arguments() {
        if word.begins_with_glob {
            return Err("gives find a pattern whose names may be options: quote it".to_owned());
        }
        let value = word.value.as_str();
        let is_number = value[value.len().min(1)..].bytes().all(|byte| byte.is_ascii_digit());
        if value.starts_with('-') && !is_number && !TESTS.contains(&value) {
            return Err(format!("gives find the option {value}, which is not known to only read"));
        }
    }
    Ok(())
}

/// Proves that a `sed` command only prints lines, as `sed -n '10,20p'` does. Other scripts can write files and run
/// commands.
fn sed(call: &Call<'_>) -> Result<(), String> {
    let words = call.arguments();
    let prints = |script: &str| {
        let commands: Vec<&str> = script.split(';').map(str::trim).collect();
        commands.iter().all(|command| {
            let address = command.trim_end_matches(['p', 'q']);
            command.len() == address.len() + 1
                && address.bytes().all(|byte| byte.is_ascii_digit() || b",$ ".contains(&byte))
        })
    };
    match words {
        [quiet, script, files @ ..] if quiet.value == "-n" && prints(&script.value) => {
            check_options("sed", files, "", "", &[], false).map(|_| ())
        }
        _ => Err("runs a script of sed that is more than -n with lines to print".to_owned()),
    }
}

/// Proves that a command only prints the path of a program, as `command -v` does.
fn queries(call: &Call<'_>) -> Result<(), String> {
    let is_query = call.program != "command"
        || call.arguments().first().is_some_and(|word| matches!(word.value.as_str(), "-v" | "-V"));
    let is_flag = |word: &Text| matches!(word.value.as_str(), "-v" | "-V" | "-a" | "-t" | "-p" | "-P");
    let is_plain = call.arguments().iter().all(|word| !word.value.starts_with('-') || is_flag(word));
    if is_query && is_plain {
        Ok(())
    } else {
        Err(format!("gives {} other options than those of a query", call.program))
    }
}
