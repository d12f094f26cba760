//! Proves that `xargs` and `find -exec` run only programs that read.
//!
//! An argument that comes from the input may be an option, such as `--output=x`, and its value may be any path. The
//! command must therefore be one that no option makes write. If the command prints the content of files, the input must
//! be a list of files below the starting directory, because a rule of the floor has to see the path of each file with
//! credentials that is read. A list can still mislead `xargs` by file names that contain spaces, unless `-0` or `-d` is
//! given. The policy accepts this, because such a list is what each search prints.

use super::git::lists as git_lists;
use super::options::check_options;
use super::tables::{READERS, Reader, SYSTEM_DIRECTORIES};
use crate::call::Call;
use crate::text::Text;
use crate::wrappers::find_directories;

/// Programs that print no content of the files that their arguments name, except for sums and counts.
const NAMERS: &[&str] = &[
    "b2sum",
    "basename",
    "cksum",
    "dirname",
    "du",
    "echo",
    "file",
    "ls",
    "md5sum",
    "readlink",
    "realpath",
    "sha1sum",
    "sha224sum",
    "sha256sum",
    "sha384sum",
    "sha512sum",
    "stat",
    "wc",
];
const FLAGS: &str = "0rtx";
const VALUED: &str = "dILnP";
const LONG: &[&str] =
    &["delimiter=", "max-args=", "max-lines=", "max-procs=", "no-run-if-empty", "null", "verbose"];

/// Proves that `xargs` only reads.
pub(super) fn xargs(call: &Call<'_>) -> Result<(), String> {
    let words = call.arguments();
    let (options, command) = words.split_at(options_end(words));
    check_options("xargs", options, FLAGS, VALUED, LONG, false)?;
    if call.source.is_hidden || call.source.is_download {
        return Err("gives a command arguments that are decoded or downloaded".to_owned());
    }
    let Some((program, fixed)) = command.split_first() else { return Ok(()) };
    let placeholder = placeholder(options);
    let is_replaced = |word: &Text| placeholder.as_deref().is_some_and(|sign| word.value.contains(sign));
    if is_replaced(program) {
        return Err("runs the program that its input names".to_owned());
    }
    let reader = reader(program)?;
    let is_ended = fixed.iter().any(|word| word.value == "--");
    if !reader.is_harmless && (!is_ended || placeholder.is_some() || reader.operands < usize::MAX) {
        return Err(format!("gives {} arguments that may be options", reader.name));
    }
    reader.accepts(fixed)?;
    let is_part = |word: &Text| is_replaced(word) && placeholder.as_deref() != Some(word.value.as_str());
    if NAMERS.contains(&reader.name)
        || !fixed.iter().any(is_part)
            && is_below(call, &Text::known("."))
            && are_lines(options)
            && (call.source.lists_files || is_plain_text(call))
    {
        return Ok(());
    }
    Err(format!("gives {} paths that are known only when it runs", reader.name))
}

/// Whether the input is a text of which the rules see each word as the command gets it.
fn is_plain_text(call: &Call<'_>) -> bool {
    let is_plain = |at: char| at.is_ascii_alphanumeric() || "_./ \n".contains(at);
    let text = call.source.text.as_ref();
    text.is_some_and(|text| text.is_known() && text.value.chars().all(is_plain))
}

/// Whether `xargs` does not split its input at another character. `-d .` makes `/x` of `./x`.
fn are_lines(options: &[Text]) -> bool {
    let is_split = |(at, word): (usize, &Text)| {
        let value = word.value.strip_prefix("-d").or_else(|| word.value.strip_prefix("--delimiter="));
        let next = || options.get(at + 1).map_or("", |next| next.value.as_str());
        value.is_some_and(|value| {
            !matches!(if value.is_empty() { next() } else { value }, "\\n" | "\\0" | "\n")
        })
    };
    !options.iter().enumerate().any(is_split)
}

/// The number of words that are options of `xargs`, with their values. `xargs` reads no options after its command.
fn options_end(words: &[Text]) -> usize {
    let mut index = 0;
    while let Some(word) = words.get(index) {
        let value = word.value.as_str();
        if !value.starts_with('-') || value == "-" || value == "--" {
            break;
        }
        // The value of the last option in a group of letters is the next word.
        let last = value.chars().last().filter(|_| !value.starts_with("--"));
        index += 1 + usize::from(last.is_some_and(|last| VALUED.contains(last)) && value.len() == 2);
    }
    index.min(words.len())
}

/// The text that each line of the input replaces.
fn placeholder(options: &[Text]) -> Option<String> {
    let at = options.iter().position(|word| word.value.starts_with("-I"))?;
    match &options[at].value[2..] {
        "" => options.get(at + 1).map(|word| word.value.clone()),
        sign => Some(sign.to_owned()),
    }
}

/// The entry of the table for a program of the system.
fn reader(program: &Text) -> Result<&'static Reader, String> {
    let value = program.value.as_str();
    let name = SYSTEM_DIRECTORIES.iter().find_map(|directory| value.strip_prefix(directory)).unwrap_or(value);
    let reader = READERS.iter().find(|reader| reader.name == name && !program.globs);
    reader.ok_or_else(|| format!("runs {value}, which is not known to only read"))
}

/// Proves that the command of an action such as `-exec` only reads. `words` are the words after the action. Returns how
/// many of them belong to it.
pub(super) fn find_action(call: &Call<'_>, words: &[Text]) -> Result<usize, String> {
    let end = words.iter().position(|word| word.value == ";" || word.value == "+");
    let command = &words[..end.ok_or("runs a command whose end is not clear")?];
    let (program, fixed) = command.split_first().ok_or("runs no command")?;
    // A path that find prints begins with the directory in which find started, so that it is not an option.
    let reader = reader(program)?;
    if reader.operands < usize::MAX {
        return Err(format!("gives {} an operand that may be written", reader.name));
    }
    if fixed.iter().any(|word| word.value.contains("{}") && word.value != "{}") {
        return Err("puts a path into another argument".to_owned());
    }
    reader.accepts(fixed)?;
    let directories = find_directories(call);
    let is_inside =
        is_below(call, &Text::known(".")) && directories.iter().all(|directory| is_below(call, directory));
    if !is_inside && !NAMERS.contains(&reader.name) {
        return Err(format!("gives {} files outside of the directory", reader.name));
    }
    Ok(command.len() + 1)
}

/// Whether a word names the starting directory, or what is below it.
fn is_below(call: &Call<'_>, word: &Text) -> bool {
    let place = call.place(word);
    word.is_known()
        && !place.as_str().starts_with(['/', '~'])
        && !place.as_str().starts_with("..")
        && !place.as_str().contains(['\u{FFFC}', '\u{FFFD}'])
}

/// Whether each line of a command's output is the path of a file below the starting directory.
pub(crate) fn lists_files(call: &Call<'_>) -> bool {
    let words = call.arguments();
    let has = |name: &str| words.iter().any(|word| word.value == name);
    let all_below = || is_below(call, &Text::known(".")) && call.operands().all(|word| is_below(call, word));
    if words.iter().any(|word| !word.is_fixed()) {
        return false;
    }
    match call.program {
        "find" => {
            let directories = find_directories(call);
            let is_inside = is_below(call, &Text::known("."))
                && directories.iter().all(|directory| is_below(call, directory));
            let prints = ["-printf", "-ls", "-exec", "-execdir", "-fprintf"];
            is_inside && !has("-L") && !has("-follow") && !prints.iter().any(|action| has(action))
        }
        "ls" => all_below() && are_options(call, "1aArRtS", &[]),
        "git" => is_below(call, &Text::known(".")) && git_lists(call),
        // `grep PATTERN` keeps or drops whole lines of a list.
        "grep" if call.source.lists_files && are_options(call, "vEFiwx", &[]) => call.operands().count() == 1,
        "rg" | "grep" => {
            let lists = ["-l", "-rl", "-lr", "-ril", "-rli", "-rlE", "--files", "--files-with-matches"];
            lists.iter().any(|list| has(list)) && all_below()
        }
        "sort" | "uniq" => {
            call.source.lists_files && words.iter().all(|word| matches!(word.value.as_str(), "-u" | "-r"))
        }
        "head" | "tail" => call.source.lists_files && counts_lines(words),
        _ => false,
    }
}

/// Whether the arguments of `head` or `tail` are only a number of lines.
fn counts_lines(words: &[Text]) -> bool {
    let is_count = |value: &str| !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    match words {
        [] => true,
        [option] => {
            let value =
                option.value.trim_start_matches("--lines=").trim_start_matches("-n").trim_start_matches('-');
            option.value.starts_with('-') && is_count(value)
        }
        [option, count] => option.value == "-n" && is_count(count.value.trim_start_matches('+')),
        _ => false,
    }
}

/// Whether all options of a call are among these letters and these long options.
fn are_options(call: &Call<'_>, letters: &str, long: &[&str]) -> bool {
    call.arguments().iter().filter(|word| word.value.starts_with('-')).all(|word| {
        match word.value.strip_prefix("--") {
            Some(name) => long.contains(&name.split('=').next().unwrap_or_default()),
            None => word.value[1..].chars().all(|letter| letters.contains(letter)),
        }
    })
}
