//! The user interfaces that take over the terminal: full screens, and an attached session.
//!
//! - `dashboard`: bottles, budgets and usage · `supervise`: proposals
//! - `picker`: a selection list · `session`: the terminal or pipes connected to a program in a bottle
//!
//! A screen shows data of [`bottle_lib`], and calls its operations.

pub(crate) mod dashboard;
pub(crate) mod picker;
pub(crate) mod session;
pub(crate) mod supervise;
