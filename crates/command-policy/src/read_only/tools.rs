//! Proves that programs with several uses have one that only reads.

use crate::call::Call;
use crate::text::Text;

/// Proves that a call of `tar`, `unzip`, `ip` or `lsof` only lists.
pub(super) fn prove(call: &Call<'_>) -> Result<(), String> {
    let words = call.arguments();
    let is_right = match call.program {
        "tar" => lists_archive(words, "tvzjJ"),
        "unzip" => matches!(words, [option, archive] if option.value == "-l" && is_file(archive)),
        "ip" => shows(words),
        "lsof" => is_query(words),
        _ => false,
    };
    if is_right {
        Ok(())
    } else {
        Err(format!("gives {} other arguments than those of a list", call.program))
    }
}

/// Whether a word names a file of this machine. `tar` connects to the host of `HOST:FILE`.
fn is_file(word: &Text) -> bool {
    !word.value.starts_with(['-', '+']) && !word.begins_with_glob && !word.value.contains(':')
}

/// Whether `tar` lists an archive: `tar -tf FILE`. Each other option may run a program.
fn lists_archive(words: &[Text], letters: &str) -> bool {
    let [options, archive, members @ ..] = words else { return false };
    let group = options.value.strip_prefix('-').unwrap_or(&options.value);
    let is_list = group
        .strip_suffix('f')
        .is_some_and(|group| group.contains('t') && group.chars().all(|letter| letters.contains(letter)));
    is_list
        && is_file(archive)
        && members.iter().all(|member| !member.value.starts_with('-') && !member.begins_with_glob)
}

/// Whether `ip` shows addresses, links, routes or neighbours.
fn shows(words: &[Text]) -> bool {
    let values: Vec<&str> = words.iter().map(|word| word.value.as_str()).collect();
    let object =
        |word: &str| matches!(word, "a" | "addr" | "address" | "l" | "link" | "r" | "route" | "neigh");
    let rest = match values.as_slice() {
        ["-4" | "-6" | "-br" | "-brief" | "-j" | "-json", rest @ ..] | rest => rest,
    };
    match rest {
        [only] => object(only),
        [first, "show" | "list" | "ls"] => object(first),
        _ => false,
    }
}

/// Whether `lsof` lists open files. Its other options write a cache of devices, or repeat without an end.
fn is_query(words: &[Text]) -> bool {
    words.iter().all(|word| {
        let value = word.value.as_str();
        let is_address = value.starts_with("-i") && !value.contains('/');
        is_address
            || matches!(value, "-n" | "-P" | "-nP" | "-Pn" | "-t" | "-p")
            || is_file(word)
            || value.starts_with(':')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lists_are_proved() {
        let texts = |line: &str| line.split(' ').map(Text::known).collect::<Vec<_>>();
        for line in ["tf a.tar", "-tf a.tar", "-tzvf a.tgz src"] {
            assert!(lists_archive(&texts(line), "tvzjJ"), "{line}");
        }
        for line in ["xf a.tar", "-tf host:a", "-tf a -I x", "tfI a x", "-f a -t", "-tf -Ix", "f a"] {
            assert!(!lists_archive(&texts(line), "tvzjJ"), "{line}");
        }
        for line in ["a", "addr show", "-br link", "route"] {
            assert!(shows(&texts(line)), "{line}");
        }
        for line in ["link set eth0 down", "netns exec x sh", "-b list", "-batch list", "addr flush"] {
            assert!(!shows(&texts(line)), "{line}");
        }
    }
}
