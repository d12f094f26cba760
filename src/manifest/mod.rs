//! Finds, parses and validates the user's manifest files.
//!
//! ```text
//! locate     a name → its file (project, home, shipped)
//!   frontmatter  the file → YAML and body, positions preserved
//!   yaml         YAML → a tree of values with positions
//!   decode       tree → the wire types of schema, strictly
//!   schema       every key of both kinds; `keys` has the hints for unknown keys
//! agent, bottle  wire types → checked values; `provider`, `egress`, `git_gate`, `git_key`, `resources` are parts
//! append     approved routes → the text of a bottle's file
//! write_manifest  a text → the user's file; `import` reads another tool's home
//! skills     a skill's name → its files
//! ```
//!
//! Nothing here merges manifests, applies defaults, or reads any file but the requested one. Every error names file,
//! line and column. Bottle manifests are never read from a project: a repository that an agent can write to must not
//! widen the agent's access.

pub mod agent;
pub mod append;
pub mod bottle;
mod decode;
pub mod egress;
pub mod env_value;
pub mod error;
pub mod frontmatter;
pub mod git_gate;
pub mod git_key;
pub mod host_path;
pub mod import;
mod keys;
pub mod locate;
pub mod located;
mod one_or_many;
pub mod origin;
mod placed;
pub mod provider;
pub mod resources;
mod schema;
pub mod secret_ref;
mod shipped;
pub mod skills;
pub mod source;
mod summary;
pub mod write_manifest;
mod yaml;

pub use agent::AgentManifest;
pub use bottle::BottleLayer;
pub use error::ManifestError;
pub use import::Imported;
pub use locate::{Entry, Homes, Listing, Manifests};
pub use located::{Located, Position};
pub use source::{Kind, Place, Source};

#[cfg(test)]
mod tests;
