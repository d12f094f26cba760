//! Finds, parses and validates the user's manifest files.
//!
//! ```text
//! locate     a name → its file (project, home, shipped)
//!   frontmatter  the file → YAML and body, positions kept
//!   keys         YAML → the wire types of schema, strictly, with hints for unknown keys
//!   schema       every key of both kinds
//!   all_errors   every error of a file; `excerpt` is the line that an error is about
//! agent, bottle  wire types → checked values; their parts are `agent_provider`, `egress`, `git_gate`, `git_key`,
//!                `resources` and `name`
//! append     approved routes → the text of a bottle's file
//! write_manifest  a text → the user's file; `import` reads the home directory of bot-bottle
//! skills     a skill's name → its files
//! ```
//!
//! These modules do not merge manifests or apply defaults, and read only the requested file; [`resolve`] merges
//! manifests. An error in a file's content names file, line and column. Bottle manifests are never read from a project,
//! because an agent with write access to the repository must not be able to give itself more access.

pub mod agent;
pub mod agent_provider;
mod all_errors;
pub mod append;
pub mod bottle;
pub mod egress;
pub mod env_value;
pub mod error;
mod excerpt;
pub mod frontmatter;
pub mod git_gate;
pub mod git_key;
pub mod host_path;
pub mod import;
mod keys;
pub mod locate;
pub mod mcp;
mod name;
mod one_or_many;
pub mod origin;
pub mod provider;
pub mod resolve;
pub mod resources;
mod schema;
pub mod secret_ref;
pub mod services;
mod shipped;
pub mod skills;
pub mod source;
mod summary;
pub mod write_manifest;

pub use agent::AgentManifest;
pub use bottle::BottleLayer;
pub use bottle_text::yaml::{Position, Spanned};
pub use error::ManifestError;
pub use import::Imported;
pub use locate::{Entry, Homes, Listing, Manifests};
pub use source::{Kind, Place, Source};

#[cfg(test)]
mod tests;
