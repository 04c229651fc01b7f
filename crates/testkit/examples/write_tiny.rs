//! Writes the tiny model of every family with the small vocabulary into a folder, each with a file of
//! its fingerprint: `cargo run -p minfer-testkit --example write_tiny -- FOLDER`.

use minfer_testkit::rng::fingerprint;
use minfer_testkit::tiny::{FAMILIES, TinySpec};
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("the folder to write to is missing")?);
    std::fs::create_dir_all(&folder)?;
    for family in FAMILIES {
        let bytes = TinySpec::new(family).with_vocab().to_bytes()?;
        let mark = format!("{:016x}", fingerprint(&bytes));
        std::fs::write(folder.join(format!("{}.gguf", family.name)), bytes)?;
        std::fs::write(folder.join(format!("{}.fingerprint", family.name)), mark)?;
    }
    Ok(())
}
