//! Detects secrets and prompt injections in text, and redacts known secrets.
//!
//! ```text
//! scanner     all detectors over a text or a stream, window by window; the result does not depend on the pieces
//!   view        the text as its reader sees it: unescaped, look-alikes folded
//!   rules       patterns of tokens and phrases: keys in one pass, patterns only at a key
//!   encoded     base64 in the text, scanned with the same rules
//!   known       known secrets: their private characters (private, pem), in the text and its letters, by windows
//!   spelled     known secrets in encoded text: where it may be (dense), and how it is decoded (digits)
//!   entropy     text as random as a key   hidden  invisible characters
//!   user_rules  the user's own rules, in gitleaks' configuration format; rule_files, all files of them
//! archive_finder  compressed files in a text
//! header      line break injection in a request's head
//! rewrite     removes findings from a text
//! redact      masks known secrets in log lines
//! ```
//! Pure: nothing here opens a file or socket. Messages never contain a secret's value.

pub mod archive_finder;
mod dense;
mod digits;
mod encoded;
mod entropy;
mod finding;
mod forms;
mod header;
mod hidden;
mod known;
mod letters;
mod pem;
mod private;
mod redact;
mod rewrite;
mod rule_files;
mod rules;
mod scanner;
mod spelled;
mod user_rules;
mod view;
mod windows;

pub use finding::{Detector, Finding, Range64, Severity};
pub use header::{HeadPart, head_injection};
pub use known::KnownSecrets;
pub use private::KnownSecret;
pub use redact::{MASK, Redactor, SHORTEST_ANYWHERE, SHORTEST_MASKED, TooLarge};
pub use rewrite::{Shape, rewrite};
pub use rule_files::{BadRuleFile, RuleFiles};
pub use rules::{token_kinds, token_names};
pub use scanner::{MOST_FINDINGS, Report, Scanner, Stream};
pub use user_rules::{RulesError, UserRules};
