//! Reads the accounts and the memory of a Linux machine.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use crate::account::Account;

/// The maximum number of bytes that are read from the user database. Further bytes are ignored.
const DATABASE_MAX: u64 = 16 << 20;

/// Returns the account with this user id. It comes from `/etc/passwd`, or else from getent(1), which also knows users
/// of LDAP and systemd.
///
/// This statically linked program must not call getpwuid(3): glibc would load modules that were built for another C
/// library, and crash.
pub fn account(uid: u32) -> Option<Account> {
    let mut lines = String::new();
    // If the user database cannot be read, it is treated as empty.
    let _ = File::open("/etc/passwd").and_then(|file| file.take(DATABASE_MAX).read_to_string(&mut lines));
    among(&lines, uid).or_else(|| {
        let mut command = Command::new("getent");
        command.args(["passwd", &uid.to_string()]).stdin(Stdio::null()).stderr(Stdio::null());
        among(&String::from_utf8(command.output().ok()?.stdout).ok()?, uid)
    })
}

/// Returns the memory of the machine in bytes (sysinfo(2)).
pub fn memory_total() -> u64 {
    let machine = rustix::system::sysinfo();
    u64::from(machine.mem_unit).saturating_mul(machine.totalram)
}

/// Returns the account with this user id from lines in the format of passwd(5).
fn among(lines: &str, uid: u32) -> Option<Account> {
    lines.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _password, id) = (fields.next()?, fields.next()?, fields.next()?);
        let (_group, _comment, home) = (fields.next()?, fields.next()?, fields.next()?);
        (id.parse() == Ok(uid)).then(|| Account { name: name.to_owned(), home: home.into() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_an_account_by_its_id() {
        let lines =
            "root:x:0:0:root:/root:/bin/bash\nbroken\n+nis::::::\nme:x:1000:1000:M,,,:/home/me:/bin/sh\n";
        let account = |name: &str, home: &str| Some(Account { name: name.to_owned(), home: home.into() });
        assert_eq!(among(lines, 0), account("root", "/root"));
        assert_eq!(among(lines, 1000), account("me", "/home/me"));
        assert_eq!(among(lines, 1), None);
        assert_eq!(among("", 0), None);
    }
}
