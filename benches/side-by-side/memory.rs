//! Measures the memory that the guest and the bundle of one idle bottle use together. The goal is 20 MiB.

use std::time::Duration;

use crate::processes::{self, Process, mib};
use crate::scene::Scene;
use anyhow::{Result, ensure};

/// How long a bottle must be idle before its memory is measured.
const SETTLE: Duration = Duration::from_secs(3);

pub(crate) fn run() -> Result<()> {
    let scene = Scene::new(&["sleep", "3600"])?;
    scene.start_detached("idle")?;
    std::thread::sleep(SETTLE);
    let mut held = processes::of_home(&scene.label());
    held.sort_by(|a, b| a.role.cmp(&b.role));
    for process in &held {
        println!(
            "{:<12} resident {:>6.2} MiB, of which {:>6.2} MiB private",
            process.role,
            mib(process.resident),
            mib(process.resident.saturating_sub(process.shared))
        );
    }
    let inside = held.iter().filter(|process| process.role != "__keeper");
    let (count, resident, private) =
        inside.fold((0, 0, 0), |(count, resident, private), process: &Process| {
            (
                count + 1,
                resident + process.resident,
                private + process.resident.saturating_sub(process.shared),
            )
        });
    ensure!(count >= 3, "guest, bundle and egress were not all found: {held:?}");
    println!(
        "guest and bundle: resident {:.2} MiB (each counts the shared program whole), private {:.2} MiB",
        mib(resident),
        mib(private)
    );
    // The proportional memory of a process contains only a share of each shared page. The sum includes the keeper,
    // because the keeper has the other shares.
    let together: Option<u64> = held.iter().map(|process| process.proportional).sum();
    if let Some(together) = together {
        println!("guest, bundle and keeper, each page counted once: {:.2} MiB", mib(together));
    }
    println!("goal: 20 MiB");
    Ok(())
}
