//! Compares a bottle that uses an image with a bottle that uses the host's system. Measures a start, and a commit of
//! 1 MiB of changes.
//!
//! The image contains a few programs of this machine, and 1 GiB in 4096 files. The image is unpacked before the
//! measurements. The goal for a commit is 100 ms.

use std::time::SystemTime;

use anyhow::Result;
use bottle_test_support::measure::{interleaved, timed};

use crate::scene::Scene;
use crate::start::since;

const ROUNDS: usize = 20;

pub(crate) fn run() -> Result<()> {
    let date = ["date", "+%s%N"];
    let (host, image) = (Scene::new(&date)?, Scene::in_image(&date)?);
    let first = timed(|| image.start())?;
    println!("the first start in it, unpacking included: {:.0} ms", first.as_secs_f64() * 1e3);
    let start = |scene: &Scene| {
        let before = SystemTime::now();
        since(before, &scene.start()?.stdout)
    };
    let samples = interleaved(
        ROUNDS,
        vec![
            ("start to agent process, in an image", Box::new(|| start(&image))),
            ("start to agent process, on the host's system", Box::new(|| start(&host))),
        ],
    )?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    println!("image / host: {:.2}", samples[0].ratio_to(&samples[1]));

    let sleep = ["sleep", "36000"];
    let (host, image) = (Scene::new(&sleep)?, Scene::in_image(&sleep)?);
    let commit = |scene: &Scene, file: &str| {
        let change = format!("head -c 1048576 /dev/urandom >{file}");
        scene.bottle(&["exec", "changed", "--", "/bin/sh", "-c", &change])?;
        timed(|| scene.bottle(&["commit", "changed", "-q"]))
    };
    host.start_detached("changed")?;
    image.start_detached("changed")?;
    let samples = interleaved(
        ROUNDS,
        vec![
            ("commit, 1 MiB changed of an image", Box::new(|| commit(&image, "/opt/changed"))),
            ("commit, 1 MiB changed of a home", Box::new(|| commit(&host, "~/changed"))),
        ],
    )?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    println!("image / home: {:.2}; goal of the commit 100 ms", samples[0].ratio_to(&samples[1]));
    Ok(())
}
