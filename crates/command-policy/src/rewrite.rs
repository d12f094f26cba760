//! Rewrites bash commands that the parser does not support to equivalent commands that the parser supports.
//!
//! - `for ((;;))`: the tokenizer reads `;;` as the end of a case. The token becomes two `;`.
//! - `select x in a b; do …; done`: becomes `for x in "" a b; do read REPLY; …; done`. In `select`, the user enters the
//!   number of an item, or another answer to choose no item. The variable `REPLY` contains the answer.

use brush_parser::{SourceSpan, Token};

/// The words after which a command begins.
const BEFORE_COMMANDS: &[&str] =
    &["if", "then", "else", "elif", "while", "until", "do", "{", "!", "time", "coproc"];

/// Rewrites the tokens of a line.
pub(crate) fn rewrite(tokens: Vec<Token>) -> Vec<Token> {
    let tokens = split_headers(tokens);
    let mut rewritten: Vec<Token> = Vec::with_capacity(tokens.len());
    // The number of `select` commands whose `do` has not been reached yet.
    let mut open = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        let span = token.location();
        if is_select(&tokens, at) {
            open += 1;
            rewritten.push(word("for", span));
            continue;
        }
        rewritten.push(token.clone());
        if open == 0 {
            continue;
        }
        match token {
            Token::Word(text, _) if text == "in" && is_word(&tokens, at.checked_sub(2), "select") => {
                rewritten.push(word("\"\"", span));
            }
            Token::Word(text, _) if text == "do" && begins_command(&tokens, at) => {
                open -= 1;
                rewritten.extend([word("read", span), word("REPLY", span), operator(";", span)]);
            }
            _ => {}
        }
    }
    rewritten
}

/// Splits each `;;` in the header of an arithmetic `for`.
fn split_headers(tokens: Vec<Token>) -> Vec<Token> {
    let mut split = Vec::with_capacity(tokens.len());
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        let Token::Operator(text, span) = token else {
            split.push(token.clone());
            continue;
        };
        match text.as_str() {
            "(" if depth > 0 => depth += 1,
            "(" if is_word(&tokens, at.checked_sub(1), "for") => depth = 1,
            ")" => depth = depth.saturating_sub(1),
            ";;" if depth > 0 => {
                split.extend([operator(";", span), operator(";", span)]);
                continue;
            }
            _ => {}
        }
        split.push(token.clone());
    }
    split
}

/// Whether the token at `at` is a `select` that begins a command, and a variable name follows.
fn is_select(tokens: &[Token], at: usize) -> bool {
    let names_variable = matches!(tokens.get(at + 1), Some(Token::Word(..)));
    is_word(tokens, Some(at), "select") && names_variable && begins_command(tokens, at)
}

/// Whether the token at `at` can begin a command, or be the `do` of a `select`.
fn begins_command(tokens: &[Token], at: usize) -> bool {
    match at.checked_sub(1).and_then(|before| tokens.get(before)) {
        None => true,
        Some(Token::Word(text, _)) => {
            BEFORE_COMMANDS.contains(&text.as_str()) || is_word(tokens, at.checked_sub(2), "select")
        }
        Some(Token::Operator(text, _)) => !text.contains(['<', '>']),
    }
}

fn is_word(tokens: &[Token], at: Option<usize>, wanted: &str) -> bool {
    matches!(at.and_then(|at| tokens.get(at)), Some(Token::Word(text, _)) if text == wanted)
}

fn word(text: &str, span: &SourceSpan) -> Token {
    Token::Word(text.to_owned(), span.clone())
}

fn operator(text: &str, span: &SourceSpan) -> Token {
    Token::Operator(text.to_owned(), span.clone())
}
