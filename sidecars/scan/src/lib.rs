//! What may not leave: the redactor and the detectors.
//!
//! ```text
//! scanner     all detectors over a text or a stream: window by window, the same however it is cut
//!   view        the text as its reader sees it: escapes undone, look-alikes folded
//!   rules       shapes of tokens and phrases: keys in one pass, patterns only where a key stands
//!   encoded     base64 within it, looked through by the same rules
//!   known       values that must not pass: their private characters (private, pem), in the text and its letters, by windows
//!   spelled     the same in what the text encodes: where it may (dense), and how it is read (digits)
//!   entropy     as random as a key        hidden  characters that nobody sees
//!   user_rules  a user's own rules, from gitleaks' configuration format; rule_files, all of them
//! header      line breaks in a request's head
//! rewrite     a text without what was found
//! redact      log lines, with every known secret masked
//! ```
//! Pure: nothing here opens a file or a socket, and no value of a secret is ever in a message.

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
