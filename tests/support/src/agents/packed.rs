//! Agents that consist of one native program in an npm package. The package is downloaded and compared with a
//! pinned digest, and only the program is kept.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha512};

use super::install::run;
use super::{Missing, node};

/// An npm package that contains a program.
pub(super) struct Packed {
    /// The name of the command.
    pub(super) name: &'static str,
    /// The name and version of the package.
    pub(super) package: &'static str,
    /// The pinned SHA-512 digest of the package, in base64.
    pub(super) sha512: &'static str,
    /// The path of the program in the package.
    pub(super) program: &'static str,
    /// The size of the package, printed before the download.
    pub(super) size: &'static str,
}

impl Packed {
    /// Installs the program in `home`, with a link to the program in `home/bin`.
    pub(super) fn install(&self, home: &Path) -> Result<(), Missing> {
        if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            return Err(Missing(format!("{} is pinned for Linux on x86-64 only", self.package)));
        }
        let npm = node::any(home)?;
        // An error is ignored, because standard error may be closed.
        let _ = writeln!(std::io::stderr(), "fetching {}, once per machine: {}", self.package, self.size);
        let tarball = npm.pack(home, self.package)?;
        self.check(&tarball)?;
        run(Command::new("tar").arg("-xzf").arg(&tarball).arg("-C").arg(home).arg(self.program))?;
        fs::remove_file(tarball)?;
        fs::create_dir_all(home.join("bin"))?;
        Ok(symlink(Path::new("..").join(self.program), home.join("bin").join(self.name))?)
    }

    fn check(&self, tarball: &Path) -> Result<(), Missing> {
        let mut digest = Sha512::new();
        digest.update(fs::read(tarball)?);
        let found = STANDARD.encode(digest.finalize());
        if found == self.sha512 {
            return Ok(());
        }
        Err(Missing(format!("{} is not the package that was pinned: its SHA-512 is {found}", self.package)))
    }
}
