//! Parses the parts of a Dockerfile that a build needs: its instructions, its base images, and whether it needs
//! BuildKit or a build context. Also labels every stage, so that leftovers of builds can be found. The module has no
//! side effects.
//!
//! The engine's classic builder leaves an image without a name for every intermediate stage, and for the last step of
//! an aborted build. Each of these images results from a `FROM` instruction, and has the labels that directly follow
//! this instruction.

use std::collections::BTreeMap;

/// An instruction of a Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Instruction {
    /// The numbers of the instruction's first and last line, from 1. The text of a here-document is not included.
    lines: (usize, usize),
    /// The keyword in upper case.
    keyword: String,
    /// The words after the keyword. Comments between continued lines are left out.
    words: Vec<String>,
    /// Whether the instruction has a here-document.
    heredoc: bool,
    /// Whether the instruction ends on its last line. Otherwise the file ends in the middle of the instruction.
    complete: bool,
}

/// A part of a Dockerfile that only BuildKit understands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BuildKitOnly {
    /// The number of the line that contains the part, from 1.
    pub(super) line: usize,
    /// The name of the part in messages (`RUN --mount`).
    pub(super) what: String,
}

/// A base image that a Dockerfile names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Base {
    /// The reference.
    pub(super) reference: String,
    /// Whether the Dockerfile sets the platform. The image of this reference on the engine may be for another platform.
    pub(super) of_platform: bool,
}

/// A parsed Dockerfile.
#[derive(Debug, Clone)]
pub(super) struct Dockerfile<'a> {
    text: &'a str,
    instructions: Vec<Instruction>,
}

/// A Dockerfile with labelled stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Labelled {
    /// The text of the Dockerfile with the added lines.
    pub(super) text: String,
    /// The numbers of the added lines, from 1.
    added: Vec<usize>,
}

impl<'a> Dockerfile<'a> {
    /// Parses lines as the builder does. If the builder would refuse the text, the result contains some or none of the
    /// instructions.
    pub(super) fn parse(text: &'a str) -> Self {
        let escape = directive(text, "escape").map_or('\\', |value| if value == "`" { '`' } else { '\\' });
        let mut instructions: Vec<Instruction> = Vec::new();
        let mut open = false;
        let mut lines = text.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            let trimmed = line.trim();
            // Empty lines and comments do not end a continued instruction.
            if trimmed.is_empty() || trimmed.starts_with('#') {
                continue;
            }
            let (content, continues) = match trimmed.strip_suffix(escape) {
                Some(content) => (content, true),
                None => (trimmed, false),
            };
            let mut words = content.split_whitespace().map(str::to_owned);
            if !open {
                instructions.push(Instruction {
                    lines: (index + 1, index + 1),
                    keyword: words.next().unwrap_or_default().to_uppercase(),
                    words: Vec::new(),
                    heredoc: false,
                    complete: false,
                });
            }
            open = continues;
            let Some(instruction) = instructions.last_mut() else { continue };
            instruction.words.extend(words);
            (instruction.lines.1, instruction.complete) = (index + 1, !continues);
            if instruction.complete && ["RUN", "COPY", "ADD"].contains(&instruction.keyword.as_str()) {
                for end in instruction.words.iter().filter_map(|word| heredoc_end(word)) {
                    // Without an end line, the word does not begin a here-document.
                    if lines.clone().any(|(_, line)| line.trim_start_matches('\t') == end) {
                        instruction.heredoc = true;
                        let _ = lines.find(|(_, line)| line.trim_start_matches('\t') == end);
                    }
                }
            }
        }
        Self { text, instructions }
    }

    /// Adds a `LABEL` instruction after each `FROM`.
    pub(super) fn label_stages(&self, label: &str) -> Labelled {
        let ends: Vec<usize> = self.stages().filter(|from| from.complete).map(|from| from.lines.1).collect();
        let mut labelled = Labelled { text: String::new(), added: Vec::new() };
        for (index, line) in self.text.split_inclusive('\n').enumerate() {
            labelled.text.push_str(line);
            if ends.contains(&(index + 1)) {
                if !line.ends_with('\n') {
                    labelled.text.push('\n');
                }
                labelled.added.push(index + labelled.added.len() + 2);
                labelled.text.push_str(&format!("LABEL {label}\n"));
            }
        }
        labelled
    }

    /// Whether an instruction reads files of the build context.
    pub(super) fn reads_context(&self) -> bool {
        self.instructions.iter().any(|instruction| {
            let reads_files = match instruction.keyword.as_str() {
                "COPY" | "ADD" => !instruction.flags().any(|flag| flag.starts_with("--from=")),
                "RUN" => instruction.flags().any(|flag| {
                    let bind = !flag.contains("type=") || flag.contains("type=bind");
                    flag.starts_with("--mount=") && bind && !flag.contains("from=")
                }),
                _ => false,
            };
            let only_heredocs = instruction.heredoc && instruction.keyword != "RUN";
            let later = instruction.keyword == "ONBUILD";
            later || (reads_files && !only_heredocs) || (only_heredocs && instruction.words.len() > 2)
        })
    }

    /// Returns the first part that only BuildKit understands.
    pub(super) fn needs_buildkit(&self) -> Option<BuildKitOnly> {
        if directive(self.text, "syntax").is_some() {
            return Some(BuildKitOnly { line: 1, what: "# syntax".to_owned() });
        }
        self.instructions.iter().find_map(|instruction| {
            let keyword = &instruction.keyword;
            let flags: &[&str] = match keyword.as_str() {
                "RUN" => &["--mount", "--network", "--security"],
                "COPY" | "ADD" => &["--link", "--chmod", "--exclude", "--parents", "--checksum"],
                _ => &[],
            };
            let flag =
                instruction.flags().find_map(|flag| flags.iter().find(|known| flag.starts_with(**known)));
            let what = match (flag, instruction.heredoc) {
                (Some(flag), _) => format!("{keyword} {flag}"),
                (None, true) => "a here-document".to_owned(),
                (None, false) => return None,
            };
            Some(BuildKitOnly { line: instruction.lines.0, what })
        })
    }

    /// Returns the line of the first here-document. Returns `None` if the Dockerfile has a `syntax` directive: the image
    /// of that directive then parses the Dockerfile, instead of the frontend in the engine.
    pub(super) fn heredoc_for_builtin_frontend(&self) -> Option<usize> {
        let named = directive(self.text, "syntax").is_some();
        let first = self.instructions.iter().find(|instruction| instruction.heredoc);
        first.map(|instruction| instruction.lines.0).filter(|_| !named)
    }

    /// Returns the base images, except those with references that depend on unknown variables.
    pub(super) fn bases(&self, args: &BTreeMap<String, String>) -> Vec<Base> {
        let mut known: BTreeMap<&str, String> = BTreeMap::new();
        let (mut stages, mut bases): (Vec<&str>, Vec<Base>) = (Vec::new(), Vec::new());
        for instruction in &self.instructions {
            let arguments: Vec<&String> =
                instruction.words.iter().filter(|word| !word.starts_with("--")).collect();
            match instruction.keyword.as_str() {
                "ARG" if bases.is_empty() && stages.is_empty() => {
                    for argument in arguments {
                        let (name, default) = argument.split_once('=').unwrap_or((argument, ""));
                        let value = args.get(name).cloned();
                        known.insert(name, value.unwrap_or_else(|| default.trim_matches('"').to_owned()));
                    }
                }
                "FROM" => {
                    let reference = arguments.first().and_then(|reference| expand(reference, &known));
                    let of_platform = instruction.flags().any(|flag| flag.starts_with("--platform"));
                    if let Some(reference) = reference
                        && reference != "scratch"
                        && !stages.iter().any(|stage| stage.eq_ignore_ascii_case(&reference))
                        && !bases.iter().any(|base| base.reference == reference)
                    {
                        bases.push(Base { reference, of_platform });
                    }
                    stages.push(arguments.get(2).map_or("", |name| name.as_str()));
                }
                _ => {}
            }
        }
        bases
    }

    fn stages(&self) -> impl Iterator<Item = &Instruction> {
        self.instructions.iter().filter(|instruction| instruction.keyword == "FROM")
    }
}

impl Instruction {
    /// Returns the flags that directly follow the keyword.
    fn flags(&self) -> impl Iterator<Item = &str> {
        self.words.iter().map(String::as_str).take_while(|word| word.starts_with("--"))
    }
}

impl Labelled {
    /// Corrects the line number in the builder's message `dockerfile parse error line 3: CAUSE`, and names the user's
    /// file. Returns `None` for any other message.
    pub(super) fn parse_error(&self, message: &str, path: &str) -> Option<String> {
        let rest = message.split_once("arse error")?.1;
        let (number, cause) = rest.split_once("line ")?.1.split_once(':')?;
        let number: usize = number.parse().ok()?;
        let before = self.added.iter().filter(|added| **added < number).count();
        Some(format!("{path}, line {}: {}", number - before, cause.trim()))
    }

    /// Creates the value for a Dockerfile to which no line was added.
    pub(super) fn unchanged(text: &str) -> Self {
        Self { text: text.to_owned(), added: Vec::new() }
    }
}

/// Returns the value of a directive (`# NAME=VALUE`) at the top of a Dockerfile.
fn directive<'a>(text: &'a str, wanted: &str) -> Option<&'a str> {
    for line in text.trim_start_matches('\u{feff}').lines() {
        let (name, value) = line.trim().strip_prefix('#')?.split_once('=')?;
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value.trim());
        }
    }
    None
}

/// Returns the line that ends a here-document. `word` begins the here-document (`<<EOF`, `<<-"EOF"`).
fn heredoc_end(word: &str) -> Option<String> {
    let name = word.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix("<<")?;
    let name = name.strip_prefix('-').unwrap_or(name).trim_matches(['"', '\'']);
    let good = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    good.then(|| name.to_owned())
}

/// Replaces `$NAME`, `${NAME}` and `${NAME:-DEFAULT}` by the values of the variables. Returns `None` if a variable is
/// unknown or has another form.
fn expand(text: &str, known: &BTreeMap<&str, String>) -> Option<String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let (variable, next) = match after.strip_prefix('{') {
            Some(braced) => braced.split_once('}')?,
            None => {
                let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
                after.split_at(end)
            }
        };
        let (name, default) = variable.split_once(":-").unwrap_or((variable, ""));
        let value = known.get(name).filter(|value| !value.is_empty()).map_or(default, String::as_str);
        if value.is_empty() || value.contains('$') {
            return None;
        }
        expanded.push_str(value);
        rest = next;
    }
    expanded.push_str(rest);
    Some(expanded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn label_stages(text: &str) -> String {
        Dockerfile::parse(text).label_stages("x=y").text
    }

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
            assert_eq!(label_stages(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_parse_error_names_the_users_file_and_line() {
        let labelled = Dockerfile::parse("FROM a\nRUN b\nFROM c\nNONSENSE\n").label_stages("x=y");
        for (message, expected) in [
            (
                "dockerfile parse error line 6: unknown instruction: NONSENSE",
                Some("d, line 4: unknown instruction: NONSENSE"),
            ),
            ("dockerfile parse error on line 1: no", Some("d, line 1: no")),
            ("Dockerfile parse error line 3: no", Some("d, line 2: no")),
            ("The command '/bin/sh -c line 3: false' returned a non-zero code: 1", None),
        ] {
            assert_eq!(labelled.parse_error(message, "d").as_deref(), expected, "{message}");
        }
    }

    #[test]
    fn finds_base_images_but_no_stages() {
        let text = "ARG TAG=1\nARG OTHER\nFROM a:${TAG} AS one\nFROM one\nFROM scratch\nARG TAG=9\n\
                    FROM --platform=linux/arm64 c\nFROM b:$TAG\nFROM b:${UNKNOWN}\nFROM d:${UNKNOWN:-2}\nFROM a:1\n";
        let file = Dockerfile::parse(text);
        let bases = |args: &[(&str, &str)]| -> Vec<String> {
            let args = args.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let name = |base: Base| base.reference + if base.of_platform { "!" } else { "" };
            file.bases(&args).into_iter().map(name).collect()
        };
        assert_eq!(bases(&[]), ["a:1", "c!", "b:1", "d:2"]);
        assert_eq!(bases(&[("TAG", "7")]), ["a:7", "c!", "b:7", "d:2", "a:1"]);
    }

    #[test]
    fn finds_what_needs_a_context_or_buildkit() {
        for (text, context, buildkit) in [
            ("FROM a\nRUN make", false, None),
            ("FROM a\nCOPY . /\n", true, None),
            ("FROM a\nCOPY --chown=1:1 \\\n . /\n", true, None),
            ("FROM a\ncopy --from=b / /\n", false, None),
            ("FROM a\nRUN --mount=type=cache,target=/c make", false, Some((2, "RUN --mount"))),
            ("FROM a\nRUN --mount=type=bind,target=/c make", true, Some((2, "RUN --mount"))),
            ("FROM a\nRUN <<EOF\nCOPY . /\nEOF\n", false, Some((2, "a here-document"))),
            ("FROM a\nRUN <<-'EOF' cat\nFROM b\n\tEOF\nCOPY a b\n", true, Some((2, "a here-document"))),
            ("FROM a\nCOPY <<EOF /x\nhello\nEOF\n", false, Some((2, "a here-document"))),
            // `<<<` is a shell operator, and begins no here-document. `<<EOF` does not begin a here-document either,
            // because no line ends it.
            ("FROM a\nRUN cat <<EOF\nRUN bash -c 'cat <<<x'\n", false, None),
            ("# syntax=docker/dockerfile:1\nFROM a\n", false, Some((1, "# syntax"))),
            ("FROM a\nCOPY --link a b\n", true, Some((2, "COPY --link"))),
        ] {
            let file = Dockerfile::parse(text);
            assert_eq!(file.reads_context(), context, "{text:?}");
            let needs = file.needs_buildkit();
            assert_eq!(needs.as_ref().map(|needs| (needs.line, needs.what.as_str())), buildkit, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn removing_the_labels_restores_the_text(text in "(FROM|RUN|#|\\\\| |a|<<a|\n){0,30}") {
            let without: String =
                label_stages(&text).split_inclusive('\n').filter(|line| *line != "LABEL x=y\n").collect();
            prop_assert_eq!(without.trim_end_matches('\n'), text.trim_end_matches('\n'));
        }
    }
}
