//! Parses and evaluates the filter expressions of betterleaks' rules. A filter expression decides whether a match is
//! not a finding.
//!
//! The supported parts of the expression language are: `&&`, `||`, `!`, comparisons, strings, numbers, lists,
//! `finding["secret"]` (also `match`, `line`, `rule_id`, `description`), `attributes["path"]`, `get`, `len`, `entropy`,
//! `matchesAny` and `containsAny`. An expression with any other part is an error, because a rule without its filter
//! would report texts that are not secrets. Source:
//! <https://github.com/betterleaks/betterleaks/blob/main/docs/config.md>.

use std::borrow::Cow;

use aho_corasick::AhoCorasick;

use crate::entropy::bits_per_byte;
use crate::go_regex::Pattern;

/// The maximum nesting of an expression. A deeper expression is an error.
const MAX_DEPTH: usize = 64;

/// A filter expression.
pub(crate) struct Filter(Expr);

/// The match for which a filter expression is evaluated.
#[derive(Clone, Copy)]
pub(crate) struct Match<'t> {
    pub(crate) secret: &'t [u8],
    pub(crate) whole: &'t [u8],
    pub(crate) line: &'t [u8],
    /// The file's path. Empty if the text is not the content of a file.
    pub(crate) path: &'t str,
    pub(crate) rule: &'t str,
    pub(crate) description: &'t str,
}

enum Expr {
    Bool(bool),
    Number(f64),
    Text(Vec<u8>),
    Field(Field),
    Not(Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Compare(Compare, Box<Expr>, Box<Expr>),
    Length(Box<Expr>),
    Entropy(Box<Expr>),
    Matches(Box<Expr>, Option<Pattern>),
    Contains(Box<Expr>, AhoCorasick),
}

#[derive(Clone, Copy)]
enum Field {
    Secret,
    Whole,
    Line,
    Path,
    Rule,
    Description,
    /// An attribute that this scanner does not provide. Its value is always empty.
    Absent,
}

#[derive(Clone, Copy)]
enum Compare {
    Equal,
    Unequal,
    Less,
    AtMost,
    More,
    AtLeast,
}

enum Value<'t> {
    Bool(bool),
    Number(f64),
    Text(Cow<'t, [u8]>),
}

impl Filter {
    /// Parses an expression.
    ///
    /// # Errors
    /// Fails with a description of the part that is not supported.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0 };
        let expr = parser.or()?;
        match parser.peek() {
            None => Ok(Self(expr)),
            Some(token) => Err(format!("unexpected {token:?}")),
        }
    }

    /// Returns whether the filter decides that the match is not a finding.
    pub(crate) fn discards(&self, found: Match<'_>) -> bool {
        matches!(self.0.value(found), Some(Value::Bool(true)))
    }
}

impl Expr {
    fn value<'t>(&'t self, found: Match<'t>) -> Option<Value<'t>> {
        let bool_of = |expr: &Expr| match expr.value(found) {
            Some(Value::Bool(value)) => Some(value),
            _ => None,
        };
        let text_of = |expr: &'t Expr| match expr.value(found) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        };
        #[expect(clippy::cast_precision_loss, reason = "lengths of lines")]
        let number = |length: usize| Value::Number(length as f64);
        Some(match self {
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(value) => Value::Number(*value),
            Self::Text(text) => Value::Text(text.as_slice().into()),
            Self::Field(field) => Value::Text(Cow::Borrowed(match field {
                Field::Secret => found.secret,
                Field::Whole => found.whole,
                Field::Line => found.line,
                Field::Path => found.path.as_bytes(),
                Field::Rule => found.rule.as_bytes(),
                Field::Description => found.description.as_bytes(),
                Field::Absent => b"",
            })),
            Self::Not(inner) => Value::Bool(!bool_of(inner)?),
            Self::And(left, right) => Value::Bool(bool_of(left)? && bool_of(right)?),
            Self::Or(left, right) => Value::Bool(bool_of(left)? || bool_of(right)?),
            Self::Length(inner) => number(text_of(inner)?.len()),
            Self::Entropy(inner) => Value::Number(bits_per_byte(&text_of(inner)?)),
            Self::Matches(inner, pattern) => {
                let text = text_of(inner)?;
                Value::Bool(pattern.as_ref().is_some_and(|pattern| pattern.is_match(&text)))
            }
            Self::Contains(inner, words) => Value::Bool(words.is_match(&*text_of(inner)?)),
            Self::Compare(compare, left, right) => {
                let order = match (left.value(found)?, right.value(found)?) {
                    (Value::Number(left), Value::Number(right)) => left.partial_cmp(&right)?,
                    (Value::Text(left), Value::Text(right)) => left.cmp(&right),
                    (Value::Bool(left), Value::Bool(right)) => left.cmp(&right),
                    _ => return None,
                };
                Value::Bool(match compare {
                    Compare::Equal => order.is_eq(),
                    Compare::Unequal => order.is_ne(),
                    Compare::Less => order.is_lt(),
                    Compare::AtMost => order.is_le(),
                    Compare::More => order.is_gt(),
                    Compare::AtLeast => order.is_ge(),
                })
            }
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Name(String),
    Text(String),
    Number(f64),
    Sign(&'static str),
}

/// The operators and punctuation of the language. Longer ones precede their prefixes.
const SIGNS: [&str; 21] = [
    "&&", "||", "==", "!=", "<=", ">=", "??", "?.", "!", "<", ">", "(", ")", "[", "]", ",", ".", "?", ":",
    "=", ";",
];

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first.is_ascii_digit() {
            let end =
                rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(rest.len());
            tokens
                .push(Token::Number(rest[..end].parse().map_err(|_| format!("a number: {}", &rest[..end]))?));
            end
        } else if of_name(first) {
            let end = rest.find(|letter| !of_name(letter)).unwrap_or(rest.len());
            tokens.push(Token::Name(rest[..end].to_owned()));
            end
        } else if "\"'`".contains(first) {
            let (text, length) = string(rest, first)?;
            tokens.push(Token::Text(text));
            length
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
            let sign = sign.ok_or_else(|| format!("the sign {first:?}"))?;
            tokens.push(Token::Sign(sign));
            sign.len()
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// Reads the string literal at the start of `text`. Returns its content and the length of the literal including the
/// quotes. A string in backquotes has no escapes.
fn string(text: &str, quote: char) -> Result<(String, usize), String> {
    let mut made = String::new();
    let mut letters = text.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            _ if letter == quote => return Ok((made, at + 1)),
            '\\' if quote != '`' => match letters.next() {
                Some((_, 'n')) => made.push('\n'),
                Some((_, 't')) => made.push('\t'),
                Some((_, 'r')) => made.push('\r'),
                Some((_, letter)) if !letter.is_ascii_alphanumeric() => made.push(letter),
                other => return Err(format!("the escape {other:?}")),
            },
            _ => made.push(letter),
        }
    }
    Err("a string without an end".to_owned())
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Option<Token> {
        self.at += 1;
        self.tokens.get(self.at - 1).cloned()
    }

    fn eat(&mut self, sign: &str) -> bool {
        let there = match self.peek() {
            Some(Token::Sign(other)) => *other == sign,
            Some(Token::Name(name)) => name == sign,
            _ => false,
        };
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.eat(sign) { Ok(()) } else { Err(format!("{:?} in place of {sign}", self.peek())) }
    }

    fn or(&mut self) -> Result<Expr, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("too deep a nesting".to_owned());
        }
        let mut left = self.and()?;
        while self.eat("||") || self.eat("or") {
            left = Expr::Or(Box::new(left), Box::new(self.and()?));
        }
        self.depth -= 1;
        Ok(left)
    }

    fn and(&mut self) -> Result<Expr, String> {
        let mut left = self.comparison()?;
        while self.eat("&&") || self.eat("and") {
            left = Expr::And(Box::new(left), Box::new(self.comparison()?));
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Result<Expr, String> {
        let left = self.single()?;
        let compares = [
            ("==", Compare::Equal),
            ("!=", Compare::Unequal),
            ("<=", Compare::AtMost),
            (">=", Compare::AtLeast),
            ("<", Compare::Less),
            (">", Compare::More),
        ];
        let Some((_, compare)) = compares.into_iter().find(|(sign, _)| self.eat(sign)) else {
            return Ok(left);
        };
        Ok(Expr::Compare(compare, Box::new(left), Box::new(self.single()?)))
    }

    fn single(&mut self) -> Result<Expr, String> {
        let mut negations = 0;
        while self.eat("!") || self.eat("not") {
            negations += 1;
        }
        let mut expr = match self.next() {
            Some(Token::Number(number)) => Expr::Number(number),
            Some(Token::Text(text)) => Expr::Text(text.into_bytes()),
            Some(Token::Sign("(")) => {
                let inner = self.or()?;
                self.expect(")")?;
                inner
            }
            Some(Token::Name(name)) => self.named(&name)?,
            other => return Err(format!("{other:?}")),
        };
        // A `??` is followed by a default for an absent field. This scanner always has a value for a field, so the
        // default is ignored.
        while self.eat("??") {
            self.single()?;
        }
        if negations % 2 == 1 {
            expr = Expr::Not(Box::new(expr));
        }
        Ok(expr)
    }

    fn named(&mut self, name: &str) -> Result<Expr, String> {
        match name {
            "true" | "false" => return Ok(Expr::Bool(name == "true")),
            "finding" | "attributes" => {
                let key = self.key()?;
                return Ok(Expr::Field(field(name, &key)?));
            }
            "filter" => {
                self.expect(".")?;
                let Some(Token::Name(name)) = self.next() else { return Err("filter".to_owned()) };
                return self.call(&name);
            }
            _ => {}
        }
        self.call(name)
    }

    /// Parses `["key"]`, `.key` or `?.key`, and returns the key.
    fn key(&mut self) -> Result<String, String> {
        let bracket = self.eat("[");
        if !bracket && !self.eat(".") && !self.eat("?.") {
            return Err(format!("{:?} in place of a key", self.peek()));
        }
        let key = match self.next() {
            Some(Token::Text(key)) if bracket => key,
            Some(Token::Name(key)) if !bracket => key,
            other => return Err(format!("the key {other:?}")),
        };
        if bracket {
            self.expect("]")?;
        }
        Ok(key)
    }

    fn call(&mut self, name: &str) -> Result<Expr, String> {
        if !["entropy", "len", "matchesAny", "containsAny", "get"].contains(&name) {
            return Err(format!("{name} is not supported"));
        }
        self.expect("(")?;
        if name == "get" {
            let Some(Token::Name(of)) = self.next() else { return Err("get".to_owned()) };
            self.expect(",")?;
            let Some(Token::Text(key)) = self.next() else { return Err("get".to_owned()) };
            if self.eat(",") {
                self.single()?;
            }
            self.expect(")")?;
            return Ok(Expr::Field(field(&of, &key)?));
        }
        let text = Box::new(self.or()?);
        let made = match name {
            "entropy" => Expr::Entropy(text),
            "len" => Expr::Length(text),
            _ => {
                self.expect(",")?;
                let list = self.list()?;
                if name == "matchesAny" {
                    let joined =
                        Pattern::any_of(&list).map_err(|(pattern, error)| format!("{pattern}: {error}"))?;
                    Expr::Matches(text, joined)
                } else {
                    let words = AhoCorasick::builder().ascii_case_insensitive(true).build(&list);
                    Expr::Contains(text, words.map_err(|error| error.to_string())?)
                }
            }
        };
        self.eat(",");
        self.expect(")")?;
        Ok(made)
    }

    fn list(&mut self) -> Result<Vec<String>, String> {
        self.expect("[")?;
        let mut list = Vec::new();
        while !self.eat("]") {
            let Some(Token::Text(text)) = self.next() else { return Err("a list of strings".to_owned()) };
            list.push(text);
            if !self.eat(",") {
                self.expect("]")?;
                break;
            }
        }
        Ok(list)
    }
}

fn field(of: &str, key: &str) -> Result<Field, String> {
    match (of, key) {
        ("finding", "secret") => Ok(Field::Secret),
        ("finding", "match") => Ok(Field::Whole),
        ("finding", "line") => Ok(Field::Line),
        ("finding", "rule_id") => Ok(Field::Rule),
        ("finding", "description") => Ok(Field::Description),
        ("attributes", "path") => Ok(Field::Path),
        ("attributes", _) => Ok(Field::Absent),
        _ => Err(format!("{of}[{key:?}] is not supported")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn discards(filter: &str, secret: &str, path: &str) -> bool {
        let (secret, line) = (secret.as_bytes(), b"the whole line".as_slice());
        let found = Match { secret, whole: secret, line, path, rule: "acme", description: "" };
        Filter::parse(filter).unwrap_or_else(|error| panic!("{filter}: {error}")).discards(found)
    }

    #[test]
    fn filters_judge_a_match() {
        for (filter, secret, path, discarded) in [
            (r#"entropy(finding["secret"]) <= 3.0"#, "aaaaaaaa", "", true),
            (r#"entropy(finding["secret"]) <= 3.0"#, "q1w2e3r4t5y6u7i8", "", false),
            (r#"filter.entropy(finding.secret) < 2 || len(finding["secret"]) == 4"#, "abcd", "", true),
            ("matchesAny(finding[\"secret\"], [`^x{2}`, `^\\${`])", "${name}", "", true),
            ("matchesAny(finding[\"secret\"], [`^x{2}`, `^\\${`])", "xname", "", false),
            (r#"containsAny(finding["line"], ["WHOLE"])"#, "a", "", true),
            (r#"matchesAny((attributes["path"] ?? ""), [`\.md$`])"#, "a", "docs/a.md", true),
            (r#"matchesAny(get(attributes, "path", ""), [`\.md$`,]) // why"#, "a", "src/a.rs", false),
            (r#"!(finding["secret"] == "a") && not false"#, "b", "", true),
            (r#"finding["rule_id"] != 'acme' or true and false"#, "b", "", false),
        ] {
            assert_eq!(discards(filter, secret, path), discarded, "{filter} {secret}");
        }
    }

    #[test]
    fn an_unsupported_part_is_an_error() {
        for filter in [
            "let a = 1; a == 1",
            r#"failsTokenEfficiency(finding["secret"])"#,
            r#"finding["fragment_raw"] == """#,
            "matchesAny(finding[\"secret\"], [`(`])",
            "entropy(",
            "'",
            "a ? b : c",
            "",
            &"(".repeat(500),
        ] {
            assert!(Filter::parse(filter).is_err(), "{filter}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,80}", tail in "[!()\\[\\]\"'`,.&|<=>a-z0-9 ]{0,80}") {
            let _ = Filter::parse(&text);
            let _ = Filter::parse(&tail);
        }
    }
}
