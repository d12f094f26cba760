//! Restricts a process with Landlock to the few files that it needs.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetStatus, Scope,
};

pub use crate::files::Files;
use crate::{HardenError, MissingProtection};

/// The newest Landlock ABI version whose rules are requested. An older kernel enforces only the rules that it supports.
const RULES: ABI = ABI::V6;

/// Files with random bytes, which always remain readable: a statically linked program reads random bytes from these
/// files instead of using the system call.
const RANDOMNESS: [&str; 2] = ["/dev/random", "/dev/urandom"];

impl Files {
    /// Applies the restriction to the calling thread, and to the threads and processes that it later starts.
    ///
    /// # Errors
    /// Fails with [`HardenError`] if a kernel with Landlock refuses the rules, or if a path in `write`,
    /// `trees` or `sockets` does not exist.
    pub fn restrict(&self) -> Result<Option<MissingProtection>, HardenError> {
        let mut rules = Ruleset::default().handle_access(AccessFs::from_all(RULES))?;
        if !self.bind_tcp {
            rules = rules.handle_access(AccessNet::BindTcp)?;
        }
        if !self.signal_others {
            rules = rules.scope(Scope::Signal)?;
        }
        let mut rules = rules.create()?;
        let read = self.read.iter().map(PathBuf::as_path).chain(RANDOMNESS.map(Path::new));
        for path in read.filter(|path| path.exists()) {
            rules = allow(rules, path, AccessFs::ReadFile | AccessFs::ReadDir)?;
        }
        let write = AccessFs::ReadFile
            | AccessFs::ReadDir
            | AccessFs::WriteFile
            | AccessFs::Truncate
            | AccessFs::MakeReg
            | AccessFs::RemoveFile;
        for path in &self.write {
            rules = allow(rules, path, write)?;
        }
        for path in self.programs.iter().filter(|path| path.exists()) {
            rules = allow(rules, path, AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::Execute)?;
        }
        for path in &self.trees {
            rules = allow(rules, path, AccessFs::from_all(RULES))?;
        }
        for path in &self.sockets {
            rules = allow(rules, path, AccessFs::MakeSock | AccessFs::RemoveFile)?;
        }
        let status = rules.restrict_self()?;
        Ok(match status.ruleset {
            RulesetStatus::FullyEnforced => None,
            RulesetStatus::PartiallyEnforced => {
                Some(MissingProtection("this kernel's landlock is old: some file rules are missing".into()))
            }
            RulesetStatus::NotEnforced => {
                Some(MissingProtection("this kernel has no landlock: files are not restricted".into()))
            }
        })
    }
}

/// Allows `access` below `path`. If `path` is a file, leaves out the rights that apply only to directories.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, HardenError> {
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(RULES) };
    Ok(rules.add_rule(PathBeneath::new(PathFd::new(path)?, access))?)
}
