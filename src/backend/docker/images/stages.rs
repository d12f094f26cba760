//! Labels every stage of a Dockerfile, so that leftovers of builds can be found. The module has no side effects.
//!
//! The engine's builder leaves an image without a name for every intermediate stage and for the last step of an aborted
//! build. Each of these images results from a `FROM` instruction and has the labels that directly follow it.

/// Adds a `LABEL` instruction after each `FROM`. Parses lines as the builder does.
pub(super) fn label_stages(dockerfile: &str, label: &str) -> String {
    let escape = escape(dockerfile);
    let mut labelled = String::with_capacity(dockerfile.len() + label.len());
    let mut instruction: Option<bool> = None;
    for line in dockerfile.split_inclusive('\n') {
        labelled.push_str(line);
        let words = line.trim();
        // Empty lines and comments do not end a continued instruction.
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
                labelled.push('\n');
            }
            labelled.push_str("LABEL ");
            labelled.push_str(label);
            labelled.push('\n');
        }
    }
    labelled
}

/// The character that continues a line. A directive at the top of the Dockerfile may change it.
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
    fn labels_each_stage_and_changes_nothing_else() {
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
            // An incomplete instruction, which the builder accepts.
            ("FROM a \\", "FROM a \\"),
            ("", ""),
        ] {
            assert_eq!(label_stages(text, "x=y"), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn removing_the_labels_restores_the_text(text in "(FROM|RUN|#|\\\\| |a|\n){0,30}") {
            let without: String =
                label_stages(&text, "x=y").split_inclusive('\n').filter(|line| *line != "LABEL x=y\n").collect();
            prop_assert_eq!(without.trim_end_matches('\n'), text.trim_end_matches('\n'));
        }
    }
}
