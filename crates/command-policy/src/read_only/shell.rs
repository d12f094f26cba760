//! Proves that a builtin of the shell, or the program of the same name, only reads and prints.

use crate::call::Call;
use crate::text::Text;
use crate::variables;

/// Proves that a builtin only prints, or changes only what no later command obeys. `None` if the command is no such
/// builtin.
pub(super) fn prove(call: &Call<'_>) -> Option<Result<(), String>> {
    let words = call.arguments();
    let is_right = match call.program {
        // `echo` prints its arguments, whatever they are: none of its options does more.
        "echo" => true,
        "printf" => printf(words),
        "[" => words.split_last().is_some_and(|(last, words)| last.value == "]" && test(words)),
        // In the POSIX shell, `[[` is the name of a program.
        "[[" => words.split_last().is_some_and(|(last, words)| last.value == "]]" && test(words)),
        "test" => test(words),
        "exit" | "return" | "break" | "continue" => match words {
            [] => true,
            [code] => code.is_number(),
            _ => false,
        },
        "export" => words.iter().all(|word| exports(word, call)),
        "history" => words.iter().all(Text::is_number) && words.len() <= 1,
        "alias" | "times" | "set" => words.is_empty(),
        "jobs" => are_flags(words, "lnprs"),
        "umask" => are_flags(words, "pS"),
        "ulimit" => are_flags(words, "HSabcdefiklmnpqrstuvxPRT"),
        _ => return None,
    };
    Some(if is_right {
        Ok(())
    } else {
        Err(format!("gives {} arguments that may do more than read", call.program))
    })
}

fn are_flags(words: &[Text], letters: &str) -> bool {
    let is_flag = |word: &Text| {
        let flags = word.value.strip_prefix('-').unwrap_or_default();
        word.is_known() && !flags.is_empty() && flags.chars().all(|letter| letters.contains(letter))
    };
    words.iter().all(is_flag)
}

/// Whether an argument of `export` sets a variable that steers no program.
fn exports(word: &Text, call: &Call<'_>) -> bool {
    if !word.is_known() || word.globs {
        return false;
    }
    match word.value.split_once('=') {
        Some((name, value)) => variables::may_be_exported(name, value),
        None if word.value == "-p" => true,
        None => {
            let value = call.scope.variable(&word.value);
            value.is_known() && variables::may_be_exported(&word.value, &value.value)
        }
    }
}

/// The operators of `test`. `-v` and `-R` are missing, because bash evaluates the index of the variable that they name.
const TESTS: &[&str] = &[
    "-G", "-L", "-N", "-O", "-S", "-a", "-b", "-c", "-d", "-e", "-ef", "-f", "-g", "-h", "-k", "-n", "-nt",
    "-o", "-ot", "-p", "-r", "-s", "-t", "-u", "-w", "-x", "-z",
];
/// The operators whose operands zsh evaluates as arithmetic expressions.
const COMPARISONS: &[&str] = &["-eq", "-ge", "-gt", "-le", "-lt", "-ne"];

/// Whether a test reads nothing but the operands of its operators.
fn test(words: &[Text]) -> bool {
    let words = words.strip_prefix(&[Text::known("!")][..]).unwrap_or(words);
    let is_value = |word: &Text| word.is_fixed() && !word.begins_with_glob || !word.may_split && !word.globs;
    match words {
        [value] => is_value(value),
        [operator, value] if matches!(operator.value.as_str(), "-n" | "-z") => is_value(value),
        [left, operator, right] if matches!(operator.value.as_str(), "=" | "==" | "!=") => {
            is_value(left) && is_value(right)
        }
        _ => words.iter().enumerate().all(|(at, word)| {
            let value = word.value.as_str();
            let is_operand = |at: Option<usize>| at.and_then(|at| words.get(at)).is_some_and(Text::is_number);
            let is_right = if COMPARISONS.contains(&value) {
                is_operand(at.checked_sub(1)) && is_operand(Some(at + 1))
            } else {
                !value.starts_with('-') || value == "-" || TESTS.contains(&value) || word.is_number()
            };
            is_right && word.is_fixed() && !word.begins_with_glob && !variables::is_code(value)
        }),
    }
}

/// Whether a call of `printf` only prints: it sets no variable, as `-v` and the conversion `%n` do, and evaluates no
/// argument, as the conversions of numbers do in zsh.
fn printf(words: &[Text]) -> bool {
    let Some((format, values)) = words.split_first() else { return false };
    if !format.is_known() || format.globs || format.value.starts_with('-') {
        return false;
    }
    let is_number = |word: &Text| word.is_number() || word.is_known() && word.value.parse::<f64>().is_ok();
    let Some(letters) = conversions(&format.value) else { return false };
    let of_values: Vec<char> = letters.chars().filter(|letter| *letter != '%').collect();
    // The format is used again while there are values.
    let is_right = |(letter, value): (&char, &Text)| match letter {
        's' | 'b' | 'q' | 'c' => true,
        letter => "diouxXfFeEgGaA".contains(*letter) && is_number(value),
    };
    let is_known = |letter: &char| "sbqcdiouxXfFeEgGaA".contains(*letter);
    of_values.iter().all(is_known) && of_values.iter().cycle().zip(values).all(is_right)
}

/// The letters of the conversions in a format. `None` if a conversion has a form that is not known.
fn conversions(format: &str) -> Option<String> {
    let mut letters = String::new();
    let mut rest = format;
    while let Some((_, after)) = rest.split_once('%') {
        let after = after.trim_start_matches(|at: char| at.is_ascii_digit() || "-+ #0.'".contains(at));
        let letter = after.chars().next()?;
        letters.push(letter);
        rest = &after[letter.len_utf8()..];
    }
    // The number of a character may write a `%`, as in `\x25n`.
    let is_number = |(at, _): (usize, &str)| {
        format[at + 1..].starts_with(|next: char| next.is_ascii_digit() || matches!(next, 'x' | 'u' | 'U'))
    };
    (!format.match_indices('\\').any(is_number)).then_some(letters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_printf() {
        let printf = |words: &[&str]| {
            let words: Vec<Text> = words.iter().map(|word| Text::known(word)).collect();
            printf(&words)
        };
        for words in [&["x\\n"][..], &["%s\\n", "a"], &["%-5s|%5.2f%%", "1", "2.5"], &["%d", "-3"]] {
            assert!(printf(words), "{words:?}");
        }
        for words in [
            &["-v", "x", "y"][..],
            &["%n", "PATH"],
            &["%5n", "PATH"],
            &["%*d", "1", "2"],
            &["%(%s)T", "1"],
            &["%d", "a[$(x)]"],
            &["\\x25n", "PATH"],
            &["%"],
            &[],
        ] {
            assert!(!printf(words), "{words:?}");
        }
    }
}
