//! Detects secrets and prompt injections in text, and redacts known secrets.
//!
//! ```text
//! scanner            runs all detectors on a text or stream, window by window
//!   view             the text as its reader sees it: escapes decoded, look-alike characters replaced
//!   words            the text as the words of a sentence, whatever separates them, for prompt injection phrases
//!   rules            built-in pattern rules for tokens and prompt injection phrases
//!   base64_runs      base64 in the text, to which the same rules apply
//!   known_secrets    known secrets, found with an index (windows) by their private characters
//!                    (matchable_parts, key_numbers)
//!   encoded_secrets  known secrets in encoded text, which dense_regions selects, and digits, base32, base85
//!                    and text_encodings decode; prefilter selects the decoded data to search
//!   entropy          text as random as a key
//!   hidden           invisible characters
//!   user_rules       the user's rules, in gitleaks' configuration format, which rule_toml reads; go_regex
//!                    translates their expressions, rule_filter reads betterleaks' filters, and rule_files
//!                    combines several files
//! archive_finder     compressed files in a text
//! excerpt            the text around a finding, without values
//! header             line breaks in a request's head that would add a header
//! rewrite            removes findings from a text
//! redact             masks known secrets in log lines, in their spellings (secret_spellings)
//! output             replaces known secrets in output that is read in parts
//! ```
//! This crate opens no file and no socket. Its errors and findings never contain a secret's value.

mod alphanumerics;
pub mod archive_finder;
mod base32;
mod base64_runs;
mod base85;
mod dense_regions;
mod digits;
mod encoded_secrets;
mod entropy;
mod excerpt;
mod finding;
mod go_regex;
mod header;
mod hidden;
mod key_numbers;
mod known_secrets;
mod matchable_parts;
mod output;
mod prefilter;
mod redact;
mod rewrite;
mod rule_files;
mod rule_filter;
mod rule_toml;
mod rules;
mod scanner;
mod secret_spellings;
mod text_encodings;
mod user_rules;
mod view;
mod windows;
mod words;

pub use excerpt::{Excerpt, excerpt};
pub use finding::{Detector, Finding, Pieces, Range64, Severity};
pub use header::{HeadPart, head_injection};
pub use known_secrets::KnownSecrets;
pub use matchable_parts::KnownSecret;
pub use output::{OutputRedactor, StreamRedactor};
pub use redact::{MASK, Redactor, SHORTEST_ANYWHERE, SHORTEST_MASKED, TooLarge};
pub use rewrite::{Shape, rewrite};
pub use rule_files::{BadRuleFile, DEFAULT_FILES, Remarks, RuleFiles};
pub use rule_toml::MAX_TEXT as MAX_RULE_FILE;
pub use rules::{token_kinds, token_names};
pub use scanner::{MOST_FINDINGS, Report, Scanner, Stream};
pub use user_rules::RulesError;
