//! The JSON that scripts rely on. Fields are only ever added.

use jiff::Timestamp;
use serde::Serialize;

/// One line of `bottle list active --json`.
#[derive(Debug, Serialize)]
pub(crate) struct ActiveBottle {
    pub(crate) slug: String,
    pub(crate) label: Option<String>,
    pub(crate) agent: Option<String>,
    pub(crate) bottles: Vec<String>,
    pub(crate) backend: Option<String>,
    pub(crate) mode: Option<&'static str>,
    pub(crate) status: &'static str,
    pub(crate) started_at: Option<Timestamp>,
    /// Questions of this bottle that wait for a person.
    pub(crate) pending: u32,
    /// Why nothing more is known of it, when its record cannot be read.
    pub(crate) problem: Option<String>,
}
