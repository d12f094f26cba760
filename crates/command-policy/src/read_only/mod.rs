//! Proves that a command only reads files and prints.
//!
//! Each program for which a proof is possible has a table of the options with which the program only reads. An option
//! that is not in the table prevents the proof, so a new option of a program never weakens the policy. Words whose
//! value is unknown before the command runs prevent the proof too, because the value could be an option. Only a few
//! builtins, such as `echo`, do no harm with any word.

mod awk;
mod feeds;
mod git;
mod options;
mod sed;
mod shell;
mod tables;
mod tools;

use crate::call::Call;
use crate::text::Text;
pub(crate) use feeds::lists_files;
use tables::{READERS, SYSTEM_DIRECTORIES, VERSIONS};

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
    if !call.argv[0].is_known() {
        return Err(format!("runs a program that is known only when it runs: {name}"));
    }
    if let Some(proof) = shell::prove(call) {
        return proof;
    }
    if let Some(word) = call.argv.iter().find(|word| !word.is_fixed()) {
        return Err(format!("has a word that is known only when it runs: {}", word.value));
    }
    if asks_for_version(call) {
        return Ok(());
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
        // `less +CMD` carries out a command of `less`, and `nm @FILE` reads options from a file.
        "less" | "nm" if call.arguments().iter().any(|word| word.value.starts_with(['+', '@'])) => {
            Err(format!("gives {} commands or options that are not known to only read", call.program))
        }
        "sed" => sed::prove(call),
        "awk" | "gawk" | "mawk" | "nawk" => awk::prove(call),
        "xargs" => feeds::xargs(call),
        "tar" | "ip" | "lsof" | "unzip" => tools::prove(call),
        "command" | "which" | "type" => queries(call),
        program => match READERS.iter().find(|reader| reader.name == program) {
            Some(reader) => reader.accepts(call.arguments()),
            None => Err(format!("runs {program}, which is not known to only read")),
        },
    }
}

/// Whether a command only prints the version of a program, or its help if it is a program that only reads.
fn asks_for_version(call: &Call<'_>) -> bool {
    let [only] = call.arguments() else { return false };
    let is_reader = READERS.iter().any(|reader| reader.name == call.program);
    match only.value.as_str() {
        "--version" => is_reader || VERSIONS.contains(&call.program),
        "--help" => is_reader,
        "-v" => matches!(call.program, "node" | "nodejs"),
        "-V" => matches!(call.program, "python" | "python3" | "ssh"),
        "version" => call.program == "openssl",
        _ => false,
    }
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
    let words = call.arguments();
    let mut index = 0;
    while let Some(word) = words.get(index) {
        index += 1;
        if matches!(word.value.as_str(), "-exec" | "-execdir") {
            index += feeds::find_action(call, &words[index..])?;
            continue;
        }
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
