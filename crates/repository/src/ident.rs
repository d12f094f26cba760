//! Cleans names and email addresses as git does when it writes them into commits and reflogs.

/// Removes the characters that git's formats do not allow: control characters, `<` and `>` everywhere, and white space
/// and punctuation at both ends. Git does the same (`strbuf_addstr_without_crud` in git's `ident.c`), except that the
/// only control character that it removes is the line feed. Older versions of git also remove a full stop at the ends.
#[must_use]
pub fn clean(text: &str) -> String {
    let is_crud = |c: char| c <= ' ' || matches!(c, ',' | ':' | ';' | '<' | '>' | '"' | '\\' | '\'');
    text.trim_matches(is_crud).chars().filter(|c| !c.is_control() && !matches!(c, '<' | '>')).collect()
}

/// Converts a text to one line without control characters: each run of white space and control characters becomes a
/// space.
pub(crate) fn one_line(text: &str) -> String {
    let is_gap = |c: char| c.is_whitespace() || c.is_control();
    text.split(is_gap).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn cleans_a_name_as_git_does() {
        for name in ["Ada", "a\nb", "A <x@y> B", " \"Ada\", ", "J. Doe", "o'Neil", "É \u{1F980}", "a\n\n> <b"]
        {
            let mut git = Command::new("git");
            git.env("GIT_AUTHOR_NAME", name)
                .env("GIT_AUTHOR_EMAIL", "e")
                .env("GIT_CONFIG_GLOBAL", "/dev/null");
            let output = git.args(["var", "GIT_AUTHOR_IDENT"]).output().expect("git");
            let shown = String::from_utf8(output.stdout).expect("UTF-8");
            assert_eq!(shown.split(" <e> ").next(), Some(clean(name).as_str()), "{name:?}");
        }
        assert_eq!(clean("a\u{1b}[31m\tb\r"), "a[31mb");
        assert_eq!(clean("\n<>"), "");
        assert_eq!(one_line(" a\n\tb \u{1b}c\r\n"), "a b c");
    }
}
