//! Expands words as the shell does, as far as their parts are known.

use brush_parser::ast::Word;
use brush_parser::word::{
    self, Parameter, ParameterExpr, ParameterTransformOp, SpecialParameter, TildeExpr, WordPiece,
    WordPieceWithSource,
};

use crate::arithmetic;
use crate::rules::Rule;
use crate::scope::Scope;
use crate::text::{NUMBER, SOMETHING, Text, UNKNOWN, braces};
use crate::variables;
use crate::walk::Walk;

/// The largest number of words that the braces of a word expand to.
const MAX_BRACES: usize = 64;

/// The words that result from one word of the command line.
#[derive(Default)]
struct Fields {
    done: Vec<Text>,
    current: Text,
    is_open: bool,
}

impl Fields {
    /// Adds text that is quoted in the command line. A `~` in quoted text is a name, not the home directory.
    fn append_quoted(&mut self, text: &str) {
        if self.current.value.is_empty() && text.starts_with('~') {
            self.append(&Text::known("./"), true);
        }
        self.append(&Text::known(text), true);
    }

    /// Adds text that is not split into words.
    fn append(&mut self, text: &Text, is_quoted: bool) {
        self.is_open = true;
        let globs = !is_quoted && text.value.contains(['*', '?', '[']);
        if self.current.value.is_empty() {
            self.current.begins_with_glob = !is_quoted && text.value.starts_with(['*', '?', '[']);
        }
        self.current.value.push_str(&text.value);
        self.current.taint(&Text { globs, ..text.clone() });
    }

    /// Adds the value of an unquoted expansion, which the shell splits into words.
    fn split(&mut self, text: &Text, separators: &str) {
        let text = &Text { may_split: !text.is_fixed(), ..text.clone() };
        let spaces = |at: char| matches!(at, ' ' | '\t' | '\n') || separators.contains(at);
        if text.value.starts_with(spaces) {
            self.close();
        }
        for (index, part) in text.value.split(spaces).filter(|part| !part.is_empty()).enumerate() {
            if index > 0 {
                self.close();
            }
            self.append(&Text { value: part.to_owned(), ..text.clone() }, false);
        }
        if text.value.ends_with(spaces) {
            self.close();
        }
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.done.push(std::mem::take(&mut self.current));
        }
    }
}

impl Walk {
    /// Expands a word to the words that the command receives.
    pub(crate) fn words(&mut self, word: &Word, scope: &mut Scope) -> Vec<Text> {
        let mut all = Vec::new();
        for raw in braces(&word.value, MAX_BRACES) {
            let mut fields = Fields::default();
            self.fill(&raw, &mut fields, scope);
            fields.close();
            all.append(&mut fields.done);
        }
        all
    }

    /// Expands a word to exactly one word, as in an assignment or a redirection.
    pub(crate) fn word(&mut self, raw: &str, scope: &mut Scope) -> Text {
        let mut fields = Fields::default();
        self.fill(raw, &mut fields, scope);
        fields.close();
        Text::joined(&fields.done)
    }

    fn fill(&mut self, raw: &str, fields: &mut Fields, scope: &mut Scope) {
        match word::parse(raw, &self.dialect.options()) {
            Ok(pieces) => self.pieces(&pieces, fields, false, scope),
            Err(_) => {
                self.not_proved(raw, "has a word that cannot be read");
                fields.append(&Text::unknown(), true);
            }
        }
    }

    fn pieces(
        &mut self,
        pieces: &[WordPieceWithSource],
        fields: &mut Fields,
        is_quoted: bool,
        scope: &mut Scope,
    ) {
        for piece in pieces {
            let expanded = match &piece.piece {
                WordPiece::Text(text) if is_quoted => {
                    fields.append_quoted(text);
                    continue;
                }
                WordPiece::Text(text) => {
                    if text.contains('(') {
                        // A pattern of zsh can run a command: `*(e:'CMD':)`.
                        self.not_proved(text, "has a pattern that may run a command");
                    }
                    fields.append(&Text::known(text), false);
                    continue;
                }
                WordPiece::SingleQuotedText(text) => {
                    fields.append_quoted(text);
                    continue;
                }
                WordPiece::AnsiCQuotedText(text) => {
                    fields.append_quoted(&unescape(text));
                    continue;
                }
                WordPiece::EscapeSequence(text) => {
                    fields.append_quoted(text.strip_prefix('\\').unwrap_or(text));
                    continue;
                }
                WordPiece::DoubleQuotedSequence(inner) | WordPiece::GettextDoubleQuotedSequence(inner) => {
                    fields.append(&Text::default(), true);
                    self.pieces(inner, fields, true, scope);
                    continue;
                }
                WordPiece::TildeExpansion(tilde) => tilde_value(tilde, scope),
                WordPiece::ParameterExpansion(expression) => self.parameter(expression, scope),
                WordPiece::CommandSubstitution(script) | WordPiece::BackquotedCommandSubstitution(script) => {
                    self.substitution(script, scope)
                }
                WordPiece::ArithmeticExpression(expression) => {
                    self.arithmetic(&expression.value, scope);
                    Text::known(&NUMBER.to_string())
                }
            };
            let separators = scope.variable("IFS").value;
            if !is_quoted || is_list(&piece.piece) {
                fields.split(&expanded, &separators);
            } else {
                fields.append(&expanded, true);
            }
        }
    }

    /// Checks the substitutions in an arithmetic expression or a pattern.
    pub(crate) fn nested(&mut self, text: &str, scope: &mut Scope) {
        if !text.contains(['$', '`']) {
            return;
        }
        let is_word = word::parse(text, &self.dialect.options()).is_ok();
        if is_word {
            self.word(text, scope);
        }
        // In some of these texts, quotes are ordinary characters, so that the shell also carries out what is in them.
        if !is_word || text.contains('\'') {
            self.word(&in_quotes(text), scope);
        }
    }

    /// Checks an arithmetic expression, and sets the variables that it sets.
    pub(crate) fn arithmetic(&mut self, text: &str, scope: &mut Scope) {
        self.nested(text, scope);
        let expression = self.word(&in_quotes(text), scope);
        match arithmetic::assigned(&expression, scope) {
            Some(names) => {
                for name in names {
                    self.assign(&name, Text::known(&NUMBER.to_string()), scope);
                }
            }
            None => self.not_proved(text, "computes with a text that may run a command"),
        }
    }

    /// Adds a finding about a part of the line that may do more than read.
    pub(crate) fn not_proved(&mut self, part: &str, why: &str) {
        self.found(Rule::Command, &[Text::known(part)], why);
    }

    /// Checks the name or the index of a parameter. An index is an arithmetic expression.
    fn check_parameter(&mut self, parameter: &Parameter, is_indirect: bool, scope: &mut Scope) {
        if let Parameter::NamedWithIndex { index, .. } = parameter {
            self.arithmetic(index, scope);
        }
        if is_indirect {
            // The value names another parameter, which may have an index: `X='a[$(CMD)]'; echo ${!X}`.
            let name = value_of(parameter, scope);
            if !name.is_known() || !variables::is_name(&name.value) {
                self.not_proved(&parameter.to_string(), "reads a variable whose name is not known");
            }
        }
    }

    fn parameter(&mut self, expression: &ParameterExpr, scope: &mut Scope) -> Text {
        use ParameterExpr as E;
        let value = |parameter: &Parameter, indirect: &bool, scope: &Scope| {
            let value = value_of(parameter, scope);
            if *indirect { Text { is_approximate: true, ..scope.variable(&value.value) } } else { value }
        };
        if let Some((parameter, indirect)) = subject(expression) {
            self.check_parameter(parameter, indirect, scope);
        }
        match expression {
            E::Parameter { parameter, indirect } => value(parameter, indirect, scope),
            E::UseDefaultValues { parameter, indirect, default_value, .. }
            | E::AssignDefaultValues { parameter, indirect, default_value, .. } => {
                let is = value(parameter, indirect, scope);
                let default = self.word(default_value.as_deref().unwrap_or_default(), scope);
                if let (E::AssignDefaultValues { .. }, Parameter::Named(name)) = (expression, parameter) {
                    self.assign(name, Text { is_approximate: true, ..default.clone() }, scope);
                }
                if is.value.is_empty() || is.value == UNKNOWN.to_string() {
                    Text { is_approximate: true, ..default }
                } else {
                    is
                }
            }
            E::IndicateErrorIfNullOrUnset { parameter, indirect, error_message, .. } => {
                self.nested(error_message.as_deref().unwrap_or_default(), scope);
                let is = value(parameter, indirect, scope);
                if is.value == UNKNOWN.to_string() { Text::known(&SOMETHING.to_string()) } else { is }
            }
            E::UseAlternativeValue { alternative_value, .. } => {
                let alternative = self.word(alternative_value.as_deref().unwrap_or_default(), scope);
                Text { is_approximate: true, ..alternative }
            }
            E::RemoveSmallestSuffixPattern { parameter, indirect, pattern }
            | E::RemoveLargestSuffixPattern { parameter, indirect, pattern } => {
                let pattern = self.word(pattern.as_deref().unwrap_or_default(), scope);
                changed(value(parameter, indirect, scope), |is| {
                    is.strip_suffix(&pattern.value).map(str::to_owned)
                })
            }
            E::RemoveSmallestPrefixPattern { parameter, indirect, pattern }
            | E::RemoveLargestPrefixPattern { parameter, indirect, pattern } => {
                let pattern = self.word(pattern.as_deref().unwrap_or_default(), scope);
                changed(value(parameter, indirect, scope), |is| {
                    is.strip_prefix(&pattern.value).map(str::to_owned)
                })
            }
            E::ReplaceSubstring { parameter, indirect, pattern, replacement, .. } => {
                let pattern = self.word(pattern, scope);
                let replacement = self.word(replacement.as_deref().unwrap_or_default(), scope);
                changed(value(parameter, indirect, scope), |is| {
                    (!pattern.value.is_empty()).then(|| is.replace(&pattern.value, &replacement.value))
                })
            }
            E::Substring { parameter, indirect, offset, length } => {
                for part in std::iter::once(offset).chain(length) {
                    self.arithmetic(&part.value, scope);
                }
                changed(value(parameter, indirect, scope), |is| {
                    let from: usize = offset.value.trim().parse().ok()?;
                    let count =
                        length.as_ref().map_or(Ok(usize::MAX), |length| length.value.trim().parse()).ok()?;
                    Some(is.chars().skip(from).take(count).collect())
                })
            }
            E::ParameterLength { .. } => Text::known(&NUMBER.to_string()),
            E::Transform { parameter, indirect, op } => {
                if matches!(op, ParameterTransformOp::PromptExpand) {
                    self.not_proved(&parameter.to_string(), "carries out the text of a variable");
                }
                changed(value(parameter, indirect, scope), |is| Some(is.to_lowercase()))
            }
            E::UppercaseFirstChar { parameter, indirect, pattern }
            | E::UppercasePattern { parameter, indirect, pattern }
            | E::LowercaseFirstChar { parameter, indirect, pattern }
            | E::LowercasePattern { parameter, indirect, pattern } => {
                self.nested(pattern.as_deref().unwrap_or_default(), scope);
                changed(value(parameter, indirect, scope), |is| Some(is.to_lowercase()))
            }
            E::VariableNames { .. } | E::MemberKeys { .. } => Text::unknown(),
        }
    }
}

/// The value that `change` returns, or the unchanged value if `change` returns `None`. Both values are approximate.
fn changed(is: Text, change: impl FnOnce(&str) -> Option<String>) -> Text {
    let value = change(&is.value).unwrap_or_else(|| is.value.clone());
    Text { value, is_approximate: true, ..is }
}

/// The text as the inside of double quotes.
fn in_quotes(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\\\""))
}

/// The parameter of an expansion, and whether the value of the parameter names another parameter.
fn subject(expression: &ParameterExpr) -> Option<(&Parameter, bool)> {
    use ParameterExpr as E;
    match expression {
        E::Parameter { parameter, indirect }
        | E::UseDefaultValues { parameter, indirect, .. }
        | E::AssignDefaultValues { parameter, indirect, .. }
        | E::IndicateErrorIfNullOrUnset { parameter, indirect, .. }
        | E::UseAlternativeValue { parameter, indirect, .. }
        | E::ParameterLength { parameter, indirect }
        | E::RemoveSmallestSuffixPattern { parameter, indirect, .. }
        | E::RemoveLargestSuffixPattern { parameter, indirect, .. }
        | E::RemoveSmallestPrefixPattern { parameter, indirect, .. }
        | E::RemoveLargestPrefixPattern { parameter, indirect, .. }
        | E::Substring { parameter, indirect, .. }
        | E::Transform { parameter, indirect, .. }
        | E::UppercaseFirstChar { parameter, indirect, .. }
        | E::UppercasePattern { parameter, indirect, .. }
        | E::LowercaseFirstChar { parameter, indirect, .. }
        | E::LowercasePattern { parameter, indirect, .. }
        | E::ReplaceSubstring { parameter, indirect, .. } => Some((parameter, *indirect)),
        E::VariableNames { .. } | E::MemberKeys { .. } => None,
    }
}

fn value_of(parameter: &Parameter, scope: &Scope) -> Text {
    match parameter {
        Parameter::Named(name) => scope.variable(name),
        Parameter::Positional(0) | Parameter::Special(SpecialParameter::ShellName) => {
            Text { is_approximate: true, ..Text::known("$0") }
        }
        Parameter::Positional(index) => scope.parameter(usize::try_from(*index).unwrap_or(usize::MAX)),
        Parameter::Special(SpecialParameter::AllPositionalParameters { .. }) => match &scope.parameters {
            Some(all) => Text { is_approximate: true, ..Text::joined(all) },
            None => Text::unknown(),
        },
        Parameter::Special(SpecialParameter::LastBackgroundProcessId) => Text::unknown(),
        Parameter::Special(
            SpecialParameter::LastExitStatus
            | SpecialParameter::PositionalParameterCount
            | SpecialParameter::ProcessId,
        ) => Text::known(&NUMBER.to_string()),
        Parameter::Special(_) => Text::known(&SOMETHING.to_string()),
        Parameter::NamedWithIndex { name, .. } | Parameter::NamedWithAllIndices { name, .. } => {
            Text { is_approximate: true, ..scope.variable(name) }
        }
    }
}

/// Whether an expansion results in several words even in quotes: `"$@"` and `"${NAME[@]}"`.
fn is_list(piece: &WordPiece) -> bool {
    let WordPiece::ParameterExpansion(ParameterExpr::Parameter { parameter, .. }) = piece else {
        return false;
    };
    matches!(
        parameter,
        Parameter::Special(SpecialParameter::AllPositionalParameters { concatenate: false })
            | Parameter::NamedWithAllIndices { concatenate: false, .. }
    )
}

fn tilde_value(tilde: &TildeExpr, scope: &Scope) -> Text {
    let value = match tilde {
        TildeExpr::Home => "~".to_owned(),
        TildeExpr::UserHome(user) => format!("~{user}"),
        TildeExpr::WorkingDir => scope.directory.clone(),
        _ => return Text::unknown(),
    };
    Text { value, is_approximate: !matches!(tilde, TildeExpr::Home), ..Text::default() }
}

/// The value of the shell string `$'…'`. `printf` and `echo -e` interpret escape sequences in the same way.
pub(crate) fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text.chars();
    while let Some(at) = rest.next() {
        if at != '\\' {
            plain.push(at);
            continue;
        }
        let Some(kind) = rest.next() else {
            plain.push('\\');
            break;
        };
        let (radix, most, digits) = match kind {
            'x' => (16, 2, rest.as_str()),
            'u' => (16, 4, rest.as_str()),
            'U' => (16, 8, rest.as_str()),
            '0'..='7' => {
                let from = rest.as_str().len() + kind.len_utf8();
                (8, 3 + usize::from(kind == '0'), &text[text.len() - from..])
            }
            'n' | 'r' => {
                plain.push('\n');
                continue;
            }
            't' | 'v' | 'f' => {
                plain.push(' ');
                continue;
            }
            'a' | 'b' | 'e' | 'E' | 'c' => continue,
            other => {
                plain.push(other);
                continue;
            }
        };
        let count = digits.chars().take(most).take_while(|digit| digit.is_digit(radix)).count();
        plain.extend(u32::from_str_radix(&digits[..count], radix).ok().and_then(char::from_u32));
        rest = digits[count..].chars();
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_read_as_the_shell_does() {
        for (text, plain) in [
            ("rm", "rm"),
            (r"\x72\155", "rm"),
            (r"\u0072m", "rm"),
            (r"a\nb", "a\nb"),
            (r"\'\\", r"'\"),
            (r"\0162m", "rm"),
            ("é\\x2f", "é/"),
            ("\\", "\\"),
            (r"\xzz", "zz"),
        ] {
            assert_eq!(unescape(text), plain, "{text}");
        }
    }
}
