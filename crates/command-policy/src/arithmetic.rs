//! Arithmetic expressions, whose variables a shell evaluates as expressions again.
//!
//! In `a[$(CMD)]`, the shell runs `CMD`. The value of a variable may be such a text: `X='a[$(CMD)]'; echo $((X))` runs
//! `CMD`. An expression is therefore harmless only if the values of its variables are numbers.

use crate::scope::Scope;
use crate::text::{NUMBER, Text};
use crate::variables;

/// The variables that a harmless expression sets. `None` if the expression may run a command, or sets a variable that
/// programs obey.
pub(crate) fn assigned(expression: &Text, scope: &Scope) -> Option<Vec<String>> {
    if expression.is_approximate {
        return None;
    }
    let mut set = Vec::new();
    let mut rest = expression.value.as_str();
    while let Some(at) = rest.chars().next() {
        if at.is_ascii_digit() {
            rest = rest.trim_start_matches(|at: char| at.is_ascii_alphanumeric() || at == '#');
        } else if at.is_ascii_alphabetic() || at == '_' {
            let end = rest.find(|at: char| !at.is_ascii_alphanumeric() && at != '_').unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            let next = after.trim_start();
            let is_set = next.starts_with('=') && !next.starts_with("==");
            let is_number = set.iter().any(|set| set == name) || scope.variable(name).is_number();
            if variables::is_obeyed(name) || !is_set && !is_number {
                return None;
            }
            if is_set {
                set.push(name.to_owned());
            }
            rest = after;
        } else if at == NUMBER || at.is_ascii_whitespace() || "+-*/%()<>=!&|^~?:,".contains(at) {
            rest = &rest[at.len_utf8()..];
        } else {
            return None;
        }
    }
    Some(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_of_numbers_is_harmless() {
        let mut scope = Scope::default();
        scope.set("n", Text::known("5"));
        scope.set("code", Text::known("a[$(x)]"));
        scope.set("name", Text::known("code"));
        for (expression, set) in [
            ("1 + 2 * (3 - 16#ff)", vec![]),
            ("n++ < 10", vec![]),
            ("i = n, i + 1", vec!["i"]),
            ("n == 5 ? 1 : 0", vec![]),
        ] {
            let set: Vec<String> = set.into_iter().map(str::to_owned).collect();
            assert_eq!(assigned(&Text::known(expression), &scope), Some(set), "{expression}");
        }
        for expression in ["code", "name", "other", "a[0]", "n[n]", "$x", "`x`", "PATH=3", "'n'", "i == 1"] {
            assert_eq!(assigned(&Text::known(expression), &scope), None, "{expression}");
        }
    }
}
