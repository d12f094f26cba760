//! Parses command lines within bounds.

use brush_parser::ast::Program;
use brush_parser::{ParserOptions, Token, parse_tokens, uncached_tokenize_str};
use thiserror::Error;

use crate::rewrite::rewrite;

/// The longest command line that is read, in bytes.
pub const MAX_LINE: usize = 64 * 1024;
/// The maximum number of brackets and compound commands that a command line may open. The limit exists because the
/// parser is recursive.
const MAX_OPENED: usize = 400;

/// Why a command line cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// The line is longer than [`MAX_LINE`].
    #[error("it is longer than {MAX_LINE} bytes")]
    TooLong,
    /// The line is nested too deeply, or has more commands than the policy checks.
    #[error("it is too complex")]
    TooComplex,
    /// The line contains a NUL character.
    #[error("it contains a NUL character")]
    Nul,
    /// The line does not follow the grammar of the shell.
    #[error("it does not follow the grammar of the shell")]
    Malformed,
}

/// The shell whose grammar applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// The grammar of bash. It also applies to zsh where both shells agree.
    Bash,
    /// The grammar of the POSIX shell.
    Sh,
}

impl Dialect {
    /// The options of the parser.
    pub(crate) fn options(self) -> ParserOptions {
        ParserOptions {
            sh_mode: self == Self::Sh,
            posix_mode: self == Self::Sh,
            tilde_expansion_after_colon: false,
            ..ParserOptions::default()
        }
    }
}

/// Parses a command line.
pub(crate) fn parse(line: &str, dialect: Dialect) -> Result<Program, Unreadable> {
    check_bounds(line)?;
    let options = dialect.options();
    let tokens: Vec<Token> =
        uncached_tokenize_str(line, &options.tokenizer_options()).map_err(|_| Unreadable::Malformed)?;
    // The POSIX shell has none of the commands that `rewrite` changes.
    let tokens = if dialect == Dialect::Bash { rewrite(tokens) } else { tokens };
    parse_tokens(&tokens, &options).map_err(|_| Unreadable::Malformed)
}

/// Refuses a line that would overflow the stack of the parser. Quoted brackets are counted too, because only the parser
/// determines which brackets are quoted.
fn check_bounds(line: &str) -> Result<(), Unreadable> {
    if line.len() > MAX_LINE {
        return Err(Unreadable::TooLong);
    }
    if line.contains('\0') {
        return Err(Unreadable::Nul);
    }
    let brackets = line.bytes().filter(|byte| matches!(byte, b'(' | b'{' | b'[' | b'`')).count();
    let compound = line
        .split(|at: char| !at.is_ascii_alphanumeric())
        .filter(|word| matches!(*word, "if" | "while" | "until" | "for" | "case" | "select" | "coproc"))
        .count();
    if brackets + compound > MAX_OPENED { Err(Unreadable::TooComplex) } else { Ok(()) }
}
