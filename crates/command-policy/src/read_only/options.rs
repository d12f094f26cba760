//! Checks options against the tables.

use super::tables::Reader;
use crate::text::Text;

impl Reader {
    /// Whether all arguments are options of the table, or operands that it accepts.
    pub(super) fn accepts(&self, words: &[Text]) -> Result<(), String> {
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
pub(super) fn check_options(
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
