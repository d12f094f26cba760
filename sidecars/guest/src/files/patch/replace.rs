//! Replaces a text in the content of a file.

use memchr::memmem::Finder;

/// Replaces the only occurrence of `search`. If `all` is true, replaces every occurrence. Returns the new content and
/// the number of occurrences. Returns the reason if nothing was replaced.
pub(super) fn replace(
    content: &[u8],
    search: &[u8],
    replacement: &[u8],
    all: bool,
) -> Result<(Vec<u8>, u64), String> {
    if search.is_empty() {
        return Err("the text to replace is empty".to_owned());
    }
    let finder = Finder::new(search);
    let Some(first) = finder.find(content) else {
        return Err("the text does not occur in it".to_owned());
    };
    let rest = content.get(first + 1..).unwrap_or_default();
    // Overlapping occurrences are ambiguous too.
    if !all && finder.find(rest).is_some() {
        return Err("the text occurs more than once; make it longer, or replace each with `--all`".to_owned());
    }
    let (mut replaced, mut end, mut places) = (Vec::with_capacity(content.len()), 0, 0);
    for begin in finder.find_iter(content) {
        replaced.extend_from_slice(content.get(end..begin).unwrap_or_default());
        replaced.extend_from_slice(replacement);
        end = begin + search.len();
        places += 1;
    }
    replaced.extend_from_slice(content.get(end..).unwrap_or_default());
    Ok((replaced, places))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ambiguous_text_is_refused() {
        let run = |content: &str, search: &str, all| {
            replace(content.as_bytes(), search.as_bytes(), b"X", all)
                .map(|(content, places)| (String::from_utf8(content).expect("text"), places))
        };
        assert_eq!(run("a b c", "b", false), Ok(("a X c".to_owned(), 1)));
        assert_eq!(run("a\nb\n", "a\nb\n", false), Ok(("X".to_owned(), 1)));
        assert_eq!(run("b b", "b", true), Ok(("X X".to_owned(), 2)));
        assert_eq!(run("aaa", "aa", true), Ok(("Xa".to_owned(), 1)));
        for (content, search, why) in [
            ("b b", "b", "more than once"),
            ("aaa", "aa", "more than once"),
            ("a", "b", "does not occur"),
            ("", "b", "does not occur"),
            ("a", "", "empty"),
        ] {
            let error = run(content, search, false).expect_err(why);
            assert!(error.contains(why), "{content:?} {search:?}: {error}");
        }
    }
}
