//! Landlock: the few files a daemon still needs.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::{HardenError, MissingProtection};

/// The newest rules asked for; an older kernel enforces what it knows of them.
const RULES: ABI = ABI::V6;

/// A statically linked program opens these for what others get by a system call.
const RANDOMNESS: [&str; 2] = ["/dev/random", "/dev/urandom"];

/// What stays open. Everything else in the file system is closed, and so is binding TCP ports, unless
/// [`Self::bind_tcp`]; descriptors that are open already stay usable.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// Files, or folders with everything in them, to read. What is not there is left out.
    pub read: Vec<PathBuf>,
    /// Folders with everything in them, to read and to run.
    pub programs: Vec<PathBuf>,
    /// Files, or folders in which everything may be done.
    pub trees: Vec<PathBuf>,
    /// Folders in which files are read, written, made and removed.
    pub write: Vec<PathBuf>,
    /// Folders in which unix sockets are made and removed.
    pub sockets: Vec<PathBuf>,
    /// Whether TCP ports may be bound.
    pub bind_tcp: bool,
    /// Whether signals may be sent to processes outside this restriction.
    pub signal_others: bool,
}

impl Files {
    /// Applies the restriction to this thread and all it will start.
    ///
    /// # Errors
    /// [`HardenError`] when a kernel that has Landlock refuses, or a folder to write is not there.
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

/// Allows `access` below `path`; rights that make no sense for a plain file are left out for one.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, HardenError> {
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(RULES) };
    Ok(rules.add_rule(PathBeneath::new(PathFd::new(path)?, access))?)
}
