//! Finds the shell commands that editors, pagers and other programs run from code in their own language.
//!
//! The languages are parsed only as far as needed to find a shell command, or a file that is written.

use crate::call::Call;
use crate::text::Text;
use crate::wrappers::Inner;

/// A program with its own language: its name, the options whose value is code in this language, and whether the program
/// also reads code from its standard input.
struct Language {
    name: &'static str,
    options: &'static [&'static str],
    reads_input: bool,
}

const fn language(name: &'static str, options: &'static [&'static str], reads_input: bool) -> Language {
    Language { name, options, reads_input }
}

const VIM: &[&str] = &["-c", "--cmd"];

const LANGUAGES: &[Language] = &[
    language("ed", &[], true),
    language("emacs", &["--eval", "-eval", "--execute", "-execute"], false),
    language("ex", VIM, true),
    language("gdb", &["-ex", "--eval-command", "-iex"], true),
    language("gvim", VIM, false),
    language("less", &[], false),
    language("man", &["-P", "--pager"], false),
    language("mariadb", &["-e", "--execute"], true),
    language("more", &[], false),
    language("mysql", &["-e", "--execute"], true),
    language("nvim", VIM, false),
    language("psql", &["-c", "--command"], true),
    language("red", &[], true),
    language("sed", &["-e", "--expression"], false),
    language("sqlite3", &["-cmd"], true),
    language("vi", VIM, false),
    language("view", VIM, false),
    language("vim", VIM, false),
    language("vimdiff", VIM, false),
];

/// Whether a program is in [`LANGUAGES`].
pub(crate) fn has(program: &str) -> bool {
    LANGUAGES.iter().any(|language| language.name == program)
}

/// The shell commands in the arguments and the input of a program.
pub(crate) fn commands(call: &Call<'_>) -> Vec<Inner> {
    let script = |text: &str| Inner::Script(Text::known(text.trim()), Vec::new());
    let texts = texts(call);
    let mut inner = Vec::new();
    for text in &texts {
        match call.program {
            "sed" => inner.extend(sed(&text.value).into_iter().filter_map(|used| match used {
                Use::Run(line) => Some(script(line)),
                Use::Write(_) => None,
            })),
            // For `man`, the value is the command of the pager.
            "man" => inner.push(script(&text.value)),
            "emacs" => inner.push(Inner::Code(text.clone())),
            _ => {
                inner.push(Inner::Code(text.clone()));
                inner.extend(text.value.lines().filter_map(escaped).map(script));
            }
        }
    }
    inner
}

/// The files that the arguments and the input of a program write.
pub(crate) fn written(call: &Call<'_>) -> Vec<Text> {
    if !has(call.program) {
        return Vec::new();
    }
    let mut files = Vec::new();
    for text in texts(call) {
        if call.program == "sed" {
            files.extend(sed(&text.value).into_iter().filter_map(|used| match used {
                Use::Write(file) => Some(Text::known(file)),
                Use::Run(_) => None,
            }));
        } else {
            files.extend(text.value.lines().filter_map(editor_file).map(Text::known));
        }
    }
    files
}

/// The pieces of code in the program's language.
fn texts(call: &Call<'_>) -> Vec<Text> {
    let Some(language) = LANGUAGES.iter().find(|language| language.name == call.program) else {
        return Vec::new();
    };
    let words = call.arguments();
    let mut texts = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let value = word.value.as_str();
        if language.options.contains(&value) {
            texts.extend(words.get(index + 1).cloned());
        } else if let Some(behind) = language.options.iter().find_map(|option| behind(word, option)) {
            texts.push(behind);
        } else if let Some(behind) = value.strip_prefix('+') {
            // The word is `+COMMAND`, as in `vim +COMMAND` or `less +COMMAND`.
            texts.push(Text { value: behind.to_owned(), ..word.clone() });
        }
    }
    let operands = || call.operands().cloned();
    match call.program {
        "sed" if texts.is_empty() && !call.has(&['f'], &["file"]) => texts.extend(operands().next()),
        "sqlite3" => texts.extend(operands().skip(1)),
        _ => {}
    }
    texts.extend(call.source.text.clone().filter(|_| language.reads_input));
    texts
}

/// The value of an option, if the option and the value are in the same word.
fn behind(word: &Text, option: &str) -> Option<Text> {
    if option.starts_with("--") {
        return word.after(option);
    }
    let value = word.value.strip_prefix(option).filter(|value| option.len() == 2 && !value.is_empty())?;
    Some(Text { value: value.to_owned(), ..word.clone() })
}

/// The shell command that a command of an editor, a pager, a debugger or a database runs.
fn escaped(line: &str) -> Option<&str> {
    let line = line.trim().trim_start_matches(':');
    let words = ["shell ", ".shell ", ".system ", "\\! ", "system ", "terminal ", "term ", "sh "];
    let worded = words.iter().find_map(|word| line.strip_prefix(word));
    // The forms are `!CMD`, `%!CMD`, `r !CMD` and `silent !CMD`. A `!` at the end of a word forces the command, as in
    // `q!`.
    worded.or_else(|| {
        let (before, command) = line.split_once('!')?;
        let is_command = !before.ends_with(|last: char| last.is_ascii_alphabetic());
        (is_command && !command.trim().is_empty()).then_some(command)
    })
}

/// The file that a command of an editor writes.
fn editor_file(line: &str) -> Option<&str> {
    let line = line.trim().trim_start_matches([':', '%', ',', '$', '1', ' ']);
    let (word, file) = line.split_once(' ')?;
    let is_write =
        matches!(word.trim_end_matches('!'), "w" | "write" | "wq" | "W" | "sav" | "saveas" | "x" | "up");
    let file = file.trim().trim_start_matches(">>").trim();
    (is_write && !file.is_empty() && !file.starts_with('!')).then_some(file)
}

/// An operation of a sed script: to run a command, or to write a file.
#[derive(Debug, PartialEq, Eq)]
enum Use<'s> {
    Run(&'s str),
    Write(&'s str),
}

/// The commands of a script of sed (GNU sed 4.9) that run a command or write a file.
fn sed(script: &str) -> Vec<Use<'_>> {
    let mut uses = Vec::new();
    let mut rest = script;
    loop {
        rest = after_address(rest.trim_start_matches([' ', '\t', '\n', ';', '{', '}']));
        let Some(command) = rest.chars().next() else { return uses };
        rest = &rest[command.len_utf8()..];
        match command {
            // The arguments of these commands extend to the end of the line.
            'e' | 'w' | 'W' | 'r' | 'R' | 'a' | 'i' | 'c' | 'b' | 't' | 'T' | ':' | '#' => {
                let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
                match command {
                    'e' => uses.push(Use::Run(line.trim())),
                    'w' | 'W' => uses.push(Use::Write(line.trim())),
                    _ => {}
                }
                rest = match command {
                    'b' | 't' | 'T' => rest.split_once([';', '\n']).map_or("", |(_, after)| after),
                    _ => after,
                };
            }
            's' | 'y' => {
                let Some(sign) = rest.chars().next() else { return uses };
                let pattern = &rest[sign.len_utf8()..];
                let Some((_, replacement)) = until(pattern, sign) else { return uses };
                let Some((text, flags)) = until(replacement, sign) else { return uses };
                let end = flags.find(|at: char| !at.is_ascii_alphanumeric()).unwrap_or(flags.len());
                let (letters, mut after) = flags.split_at(end);
                if command == 's' && letters.contains('w') {
                    let (line, next) = flags.split_once('\n').unwrap_or((flags, ""));
                    uses.extend(line.split_once('w').map(|(_, file)| Use::Write(file.trim())));
                    after = next;
                } else if command == 's' && letters.contains('e') {
                    uses.push(Use::Run(text));
                }
                rest = after;
            }
            _ => {}
        }
    }
}

/// The rest of a script after the address of a command.
fn after_address(script: &str) -> &str {
    let mut rest = script;
    loop {
        rest = rest.trim_start_matches(|at: char| at.is_ascii_digit() || " \t,$!~+".contains(at));
        let (sign, pattern) = match rest.chars().next() {
            Some('/') => ('/', &rest[1..]),
            Some('\\') => match rest[1..].chars().next() {
                Some(sign) => (sign, &rest[1 + sign.len_utf8()..]),
                None => return rest,
            },
            _ => return rest,
        };
        match until(pattern, sign) {
            Some((_, after)) => rest = after.trim_start_matches(['I', 'M']),
            None => return "",
        }
    }
}

/// Splits the text at the next `sign` that no backslash precedes.
fn until(text: &str, sign: char) -> Option<(&str, &str)> {
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        if letter == sign && !escaped {
            return Some((&text[..at], &text[at + sign.len_utf8()..]));
        }
        escaped = letter == '\\' && !escaped;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_files_of_sed() {
        for (script, expected) in [
            ("e rm -rf /", vec![Use::Run("rm -rf /")]),
            ("1e halt", vec![Use::Run("halt")]),
            ("/x/,$ e halt\np", vec![Use::Run("halt")]),
            ("s/x/halt/e", vec![Use::Run("halt")]),
            ("s|a/b|halt|ge;p", vec![Use::Run("halt")]),
            ("p;$!e halt", vec![Use::Run("halt")]),
            ("w /etc/x", vec![Use::Write("/etc/x")]),
            (r"\,a,I w /etc/x", vec![Use::Write("/etc/x")]),
            ("s/a/b/gw /etc/x", vec![Use::Write("/etc/x")]),
            ("s/e/w/", vec![]),
            (r"s/\/e/e rm/g", vec![]),
            ("1!G;h;$p", vec![]),
            ("/e halt/d", vec![]),
            ("a e halt", vec![]),
            ("y/abc/xew/", vec![]),
            ("s/a", vec![]),
        ] {
            assert_eq!(sed(script), expected, "{script}");
        }
    }

    #[test]
    fn commands_and_files_of_editors() {
        for (line, command, file) in [
            (":!rm -rf /", Some("rm -rf /"), None),
            ("%!sort", Some("sort"), None),
            ("silent !halt", Some("halt"), None),
            ("r !halt", Some("halt"), None),
            ("q!", None, None),
            ("wq! /etc/x", None, Some("/etc/x")),
            ("1,$w /etc/x", None, Some("/etc/x")),
            ("w >> /etc/x", None, Some("/etc/x")),
            ("w !halt", Some("halt"), None),
            ("shell halt", Some("halt"), None),
            ("\\! halt", Some("halt"), None),
            (".system halt", Some("halt"), None),
            ("set number", None, None),
        ] {
            assert_eq!((escaped(line), editor_file(line)), (command, file), "{line}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_script_panics(script in r"[a-z0-9/\\;!\n é|,$ ]{0,40}") {
            sed(&script);
            escaped(&script);
            editor_file(&script);
        }
    }
}
