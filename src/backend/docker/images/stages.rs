//! Says of every stage of a Dockerfile that it is ours. Pure.
//!
//! The engine's builder leaves an image without a name for every stage that is no part of the result, and for
//! the last step of a build that was given up. Each begins with a `FROM`, and takes over the labels that stand
//! right behind it.

/// The Dockerfile with `LABEL` behind each `FROM`. What the lines are is decided as the builder decides it.
pub(super) fn marked(dockerfile: &str, label: &str) -> String {
    let escape = escape(dockerfile);
    let mut marked = String::with_capacity(dockerfile.len() + label.len());
    let mut instruction: Option<bool> = None;
    for line in dockerfile.split_inclusive('\n') {
        marked.push_str(line);
        let words = line.trim();
        // Neither ends an instruction that goes on.
        if words.is_empty() || words.starts_with('#') {
            continue;
        }
        let first = words.split_whitespace().next().unwrap_or_default();
        let from = *instruction.get_or_insert_with(|| first.eq_ignore_ascii_case("FROM"));
        if words.ends_with(escape) {
            continue;
        }
        instruction = None;
        if from {
            if !line.ends_with('\n') {
                marked.push('\n');
            }
            marked.push_str("LABEL ");
            marked.push_str(label);
            marked.push('\n');
        }
    }
    marked
}

/// What a line ends with that goes on in the next: a directive at the very top may name another one.
fn escape(dockerfile: &str) -> char {
    for line in dockerfile.trim_start_matches('\u{feff}').lines() {
        let directive = line.trim().strip_prefix('#').and_then(|directive| directive.split_once('='));
        let Some((name, value)) = directive else { break };
        if name.trim().eq_ignore_ascii_case("escape") {
            return if value.trim() == "`" { '`' } else { '\\' };
        }
    }
    '\\'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_stage_is_marked_and_nothing_else_changes() {
        for (text, expected) in [
            ("FROM a", "FROM a\nLABEL x=y\n"),
            ("FROM a\nRUN b\n", "FROM a\nLABEL x=y\nRUN b\n"),
            (
                "# FROM z\nARG A=1\n\n  from a AS b\nFROM b",
                "# FROM z\nARG A=1\n\n  from a AS b\nLABEL x=y\nFROM b\nLABEL x=y\n",
            ),
            ("FROM \\\n# word\n\n a\nRUN c", "FROM \\\n# word\n\n a\nLABEL x=y\nRUN c"),
            ("FROM a\nRUN echo \\\nFROM b\n", "FROM a\nLABEL x=y\nRUN echo \\\nFROM b\n"),
            (
                "# escape=`\nFROM `\n a\nRUN c:\\\nFROM d\n",
                "# escape=`\nFROM `\n a\nLABEL x=y\nRUN c:\\\nFROM d\nLABEL x=y\n",
            ),
            ("FROM a\r\nRUN b\r\n", "FROM a\r\nLABEL x=y\nRUN b\r\n"),
            ("FROMAGE a\nCOPY --from=b c d\n", "FROMAGE a\nCOPY --from=b c d\n"),
            // It has no end, and the builder takes it as it is.
            ("FROM a \\", "FROM a \\"),
            ("", ""),
        ] {
            assert_eq!(marked(text, "x=y"), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn without_the_marks_it_is_as_it_was(text in "(FROM|RUN|#|\\\\| |a|\n){0,30}") {
            let without: String =
                marked(&text, "x=y").split_inclusive('\n').filter(|line| *line != "LABEL x=y\n").collect();
            prop_assert_eq!(without.trim_end_matches('\n'), text.trim_end_matches('\n'));
        }
    }
}
