//! Proves that a program of awk only prints fields and computes.
//!
//! The lexer accepts a small part of the language. It refuses each text that an implementation of awk (gawk, mawk,
//! busybox, the original) may read differently, because a part that one of them takes for a regular expression can be
//! code for another one.

use crate::call::Call;
use crate::text::Text;
use crate::variables;

const KEYWORDS: &[&str] = &[
    "BEGIN", "END", "break", "continue", "delete", "do", "else", "exit", "for", "if", "in", "next", "print",
    "printf", "while",
];
/// Functions without an effect, except on variables.
const FUNCTIONS: &[&str] = &[
    "atan2", "cos", "exp", "gensub", "gsub", "index", "int", "length", "log", "match", "rand", "sin",
    "split", "sprintf", "sqrt", "srand", "strftime", "strtonum", "sub", "substr", "systime", "tolower",
    "toupper",
];
/// The variables of awk that a program may use. Others, such as `ARGV`, choose the files that awk reads.
const VARIABLES: &[&str] = &[
    "CONVFMT",
    "FILENAME",
    "FNR",
    "FS",
    "IGNORECASE",
    "NF",
    "NR",
    "OFMT",
    "OFS",
    "ORS",
    "RLENGTH",
    "RS",
    "RSTART",
    "SUBSEP",
];

/// Proves that a call of awk only prints.
pub(super) fn prove(call: &Call<'_>) -> Result<(), String> {
    let mut words = call.arguments();
    loop {
        words = match words {
            [option, value, rest @ ..] if matches!(option.value.as_str(), "-F" | "-v") => {
                check_option(&option.value, &value.value)?;
                rest
            }
            [option, rest @ ..] if option.value.starts_with('-') && option.value.len() > 2 => {
                let (name, value) = option.value.split_at_checked(2).unwrap_or((&option.value, ""));
                check_option(name, value)?;
                rest
            }
            [program, files @ ..] if !program.value.starts_with('-') && !program.globs => {
                check_files(files)?;
                return check(&program.value).map_err(|why| format!("runs a program of awk that {why}"));
            }
            _ => return Err("runs awk without a program on the command line".to_owned()),
        };
    }
}

fn check_option(name: &str, value: &str) -> Result<(), String> {
    match name {
        "-F" => Ok(()),
        "-v" if value.split_once('=').is_some_and(|(name, _)| is_variable(name)) => Ok(()),
        _ => Err(format!("gives awk the option {name}, which is not known to only read")),
    }
}

/// Checks the operands after the program. gawk opens a connection for a file below `/inet`.
fn check_files(files: &[Text]) -> Result<(), String> {
    let is_bad = |file: &&Text| {
        let value = file.value.as_str();
        let sets = value.split_once('=').is_some_and(|(name, _)| !name.contains('/') && !is_variable(name));
        value.starts_with('-') && value.len() > 1 || value.starts_with("/inet") || sets
    };
    match files.iter().find(is_bad) {
        Some(file) => Err(format!("gives awk {}, which may be more than a file", file.value)),
        None => Ok(()),
    }
}

/// Whether a program may use a name as a variable.
fn is_variable(name: &str) -> bool {
    let is_name = variables::is_name(name) && !name.starts_with(|first: char| first.is_ascii_digit());
    let is_of_awk = name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    is_name && if is_of_awk { VARIABLES.contains(&name) } else { !WORDS_OF_EFFECT.contains(&name) }
}

/// The words of awk (of any implementation) that run, open or close something.
const WORDS_OF_EFFECT: &[&str] = &[
    "close",
    "eval",
    "fflush",
    "fork",
    "func",
    "function",
    "getline",
    "include",
    "load",
    "namespace",
    "nextfile",
    "return",
    "switch",
    "system",
];

/// What the preceding token was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A value: a `/` after it divides.
    Value,
    /// An operator or an opening bracket: a `/` after it begins a regular expression.
    Operator,
    /// A keyword, or another token after which a `/` may be either.
    Unclear,
}

/// The state of the lexer.
struct Lexer<'p> {
    rest: &'p str,
    before: Before,
    /// Whether the preceding token is `if`, `while` or `for`, whose brackets end where a statement begins.
    begins_statement: bool,
    braces: usize,
    /// The open parentheses. The flag is true for those of `if`, `while` and `for`.
    parentheses: Vec<bool>,
}

/// Checks that a program only prints and computes.
fn check(program: &str) -> Result<(), &'static str> {
    let mut lexer = Lexer {
        rest: program,
        before: Before::Operator,
        begins_statement: false,
        braces: 0,
        parentheses: Vec::new(),
    };
    while let Some(at) = lexer.rest.chars().next() {
        lexer.token(at)?;
        if !at.is_ascii_alphabetic() && at != ' ' {
            lexer.begins_statement = false;
        }
    }
    Ok(())
}

impl<'p> Lexer<'p> {
    fn token(&mut self, at: char) -> Result<(), &'static str> {
        match at {
            ' ' | '\t' => self.skip(1),
            '\n' | ';' => self.operator(1),
            '"' => {
                let end = string_end(&self.rest[1..]).ok_or("has a text that it does not close")?;
                self.skip(end + 2);
                self.before = Before::Value;
            }
            '/' if self.before == Before::Operator => {
                let end = pattern_end(&self.rest[1..], '/').ok_or("has a pattern that is not clear")?;
                self.skip(end + 2);
                self.before = Before::Value;
            }
            '/' if self.before == Before::Unclear => return Err("has a pattern that is not clear"),
            '|' if self.rest.starts_with("||") => self.operator(2),
            '>' if self.rest.starts_with(">>") => return Err("writes a file"),
            // Outside of brackets, `>` in an action writes a file.
            '>' if self.braces > 0 && self.parentheses.is_empty() => return Err("writes a file"),
            '{' if !self.parentheses.is_empty() => return Err("has brackets that do not match"),
            '{' => {
                self.braces += 1;
                self.operator(1);
            }
            '}' => {
                self.braces = self.braces.checked_sub(1).ok_or("has a bracket too many")?;
                self.operator(1);
            }
            '(' => {
                self.parentheses.push(self.begins_statement);
                self.operator(1);
            }
            ')' => {
                let is_head = self.parentheses.pop().ok_or("has a bracket too many")?;
                self.skip(1);
                self.before = if is_head { Before::Unclear } else { Before::Value };
            }
            ']' => {
                self.skip(1);
                self.before = Before::Value;
            }
            '+' | '-' if self.rest[1..].starts_with(at) => {
                self.skip(2);
                self.before = Before::Unclear;
            }
            '$' => {
                self.skip(1);
                self.before = Before::Unclear;
            }
            '[' | ',' | '+' | '-' | '*' | '/' | '%' | '^' | '=' | '!' | '<' | '>' | '~' | '?' | ':' => {
                self.operator(1);
            }
            '&' if self.rest.starts_with("&&") => self.operator(2),
            at if at.is_ascii_digit() || at == '.' => {
                self.take(|at| at.is_ascii_digit() || at == '.');
                if self.rest.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_') {
                    return Err("has a number that is not clear");
                }
                self.before = Before::Value;
            }
            at if at.is_ascii_alphabetic() || at == '_' => self.word()?,
            _ => return Err("is more than print and expressions"),
        }
        Ok(())
    }

    fn word(&mut self) -> Result<(), &'static str> {
        let word = self.take(|at| at.is_ascii_alphanumeric() || at == '_');
        let is_call = self.rest.trim_start().starts_with('(');
        self.begins_statement = matches!(word, "if" | "while" | "for");
        // `length` without brackets is a value in some implementations alone.
        if word != "in" && KEYWORDS.contains(&word) && !self.parentheses.is_empty() {
            return Err("has brackets that do not match");
        }
        if KEYWORDS.contains(&word) || word == "length" && !is_call {
            self.before = Before::Unclear;
        } else if FUNCTIONS.contains(&word) || !is_call && is_variable(word) {
            self.before = Before::Value;
        } else {
            return Err("is more than print and expressions");
        }
        Ok(())
    }

    fn take(&mut self, belongs: impl Fn(char) -> bool) -> &'p str {
        let end = self.rest.find(|at| !belongs(at)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn operator(&mut self, length: usize) {
        self.skip(length);
        self.before = Before::Operator;
    }

    fn skip(&mut self, length: usize) {
        self.rest = self.rest.get(length..).unwrap_or_default();
    }
}

/// The length of a string literal without its quotes.
fn string_end(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '\n' => return None,
            '"' if !is_escaped => return Some(at),
            _ => is_escaped = letter == '\\' && !is_escaped,
        }
    }
    None
}

/// The length of a regular expression that ends at `end`. `None` if programs disagree where it ends: some end it at the
/// sign in a set of characters (`[…]`), or take a backslash in a set as an ordinary character.
pub(super) fn pattern_end(text: &str, end: char) -> Option<usize> {
    let mut is_escaped = false;
    let mut in_set = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '\n' => return None,
            _ if is_escaped => is_escaped = false,
            '\\' if in_set => return None,
            '\\' => is_escaped = true,
            _ if letter == end => return (!in_set).then_some(at),
            // A set may begin with `]`, as in `[]a]`, or contain a class, as in `[[:digit:]]`.
            '[' if text[at..].starts_with("[]") || text[at..].starts_with("[^]") => return None,
            '[' if in_set && !text[at..].starts_with("[:") => return None,
            '[' => in_set = true,
            ']' if in_set && text[..at].ends_with(':') => {}
            ']' => in_set = false,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_only_print() {
        for program in [
            "{print}",
            "{ print $1 }",
            "NR > 1 { print $1, $NF; n++ } END { printf \"%d\\n\", n / 2 }",
            "/a|b/ && $2 ~ /^x/ || !/y/",
            "{ if ($3 >= 5) print $1; else sum[$1] += $3 }",
            "{ gsub(/[a-z]+/, \"\"); print length($0) }",
            "BEGIN { FS = \":\" } $1 == \"| sh\" { print toupper($2) }",
            "!seen[$0]++",
            "{ for (i = 1; i <= NF; i++) print $i }",
            "{ print ($1 > 2 ? \"a\" : \"b\") }",
            "/[[:digit:]]+/",
            "{ print ($1 + $2) / 2, n++ }",
            "{ for (k in sum) print k, sum[k] / 2.5 }",
        ] {
            assert_eq!(check(program), Ok(()), "{program}");
        }
    }

    #[test]
    fn programs_that_may_do_more() {
        for program in [
            "{ system(\"x\") }",
            "{ system (\"x\") }",
            "{ print > \"x\" }",
            "{ print(1) > \"x\" }",
            "{ print $1 >> \"x\" }",
            "{ print | \"x\" }",
            "{ print |& \"x\" }",
            "{ getline x < \"y\" }",
            "\"x\" | getline",
            "@load \"x\"",
            "{ @f(1) }",
            "function f() { }",
            "{ f(1) }",
            "{ x = 1 / system(\"a\") / 2 }",
            "{ print /a/ }",
            "/[/]/",
            "/[\\]/",
            "{ print } # x",
            "{ print \\\n > \"x\" }",
            "{ \"a\nb\" }",
            "BEGIN { ARGV[1] = \"x\" }",
            "{ ENVIRON[\"A\"] }",
            "}",
            "{ print \"x }",
            "{ n++ /\"/; print \"; system(\"x\"); \"/ 1 }",
            "{ if (1) /\"/; system(\"x\"); /\"/ }",
            "{ while (x) /\"/; system(\"x\"); /\"/ }",
            "{ print length /\"/; system(\"x\"); \"/ 2 }",
            "{ print 1system(\"x\") }",
            "{ print 1e5system(\"x\") }",
            "{ $/x/ }",
            "{ ( print > \"x\" ) }",
            "( { print > \"x\" } )",
        ] {
            assert!(check(program).is_err(), "{program}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_program_panics(program in r#"[-a-z0-9 "/\\;|>{}()\[\]é\n$:^]{0,40}"#) {
            let _ = check(&program);
        }
    }
}
