//! Decides whether a command line may run.
//!
//! ```text
//! command line ── syntax ──► walk ──► calls ──┬─ rules ──────► findings ──┐
//!                    (grammar    (wrappers    │                           ├─► decide(mode, approvals)
//!                     of bash)    removed)    └─ read_only ──► proof ─────┘
//! ```
//! [`assess`] reads a command line with the grammar of bash and lists its effects: each [`Finding`] names its [`Rule`].
//! [`Assessment::decide`] applies a chain of checks, and the first denial wins:
//!
//! 1. The **floor**: a command that destroys more than the workspace, hides what it runs, reads credentials or rewrites
//!    history on a server is denied in each mode.
//! 2. The **proof**: each mode allows a command that is proven only to read.
//! 3. The **mode**: [`Mode::LetItGo`] allows all other commands. The other modes ask the user, unless each finding is
//!    approved.
//!
//! The policy is a convenience for users who drive a bottle from outside. The policy is not a security boundary: a
//! program can do more than its name shows. The isolation of a bottle does not depend on the policy.
//!
//! This crate performs no I/O.

mod arithmetic;
mod assessment;
mod call;
mod code;
mod escapes;
mod expand;
mod mode;
mod path;
mod read_only;
mod rewrite;
mod rules;
mod run;
mod scope;
mod syntax;
mod text;
mod variables;
mod walk;
mod wrappers;

pub use assessment::{
    Approval, Assessment, Decision, Finding, READ_ONLY_ENVIRONMENT, assess, assess_file_change, shown,
};
pub use mode::{Mode, ModeName, UnknownMode};
pub use rules::Rule;
pub use syntax::{MAX_LINE, Unreadable};
