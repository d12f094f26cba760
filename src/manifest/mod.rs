//! Text → layers: the manifest files a user writes, read, checked and located.
//!
//! ```text
//! locate     a name → the file that means it (project, home, shipped)
//!   frontmatter  the file → YAML and body, positions kept
//!   yaml         YAML → a tree in which every value knows its place
//!   decode       tree → the wire types of schema, strictly
//!   schema       what may be written: every key of both kinds; `keys` says what to offer instead
//! agent, bottle  wire types → checked values; `provider`, `egress`, `git_gate`, `git_key`, `resources` are parts
//! append     approved routes → the text of a bottle's file
//! put        a text → the user's own file; `import` reads another tool's home
//! skills     a skill's name → the files it stands for
//! ```
//!
//! A manifest says what a user wants; nothing here merges, fills in a default or reads anything but
//! the file that was asked for. Every error names file, line and column. A bottle file is never looked
//! for in a project: a repository that an agent can write to must not widen what the agent may reach.

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
