//! Which accelerators there are, and how much of their own memory is free.
//!
//! Invariant: a device keeps its place in the list, whether it can be read or not. Without a driver, or in a build without
//! the feature `nvml`, there are none.

#[cfg(feature = "nvml")]
mod nvml;

use crate::units::Bytes;

/// An accelerator with memory of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// What it is called; empty where it does not say.
    pub name: String,
    /// All of its memory, where it is known.
    pub total: Option<Bytes>,
    /// What nobody uses of it, where it is known.
    pub free: Option<Bytes>,
}

/// Something that knows the accelerators of a machine.
pub trait Devices: Send + Sync {
    /// Reads what is there now; the place in the list is a device's number.
    fn read(&self) -> Vec<Device>;
}

/// A machine without accelerators.
pub struct NoDevices;

impl Devices for NoDevices {
    fn read(&self) -> Vec<Device> {
        Vec::new()
    }
}

/// Returns the accelerators of the running machine.
#[cfg(feature = "nvml")]
pub fn system() -> Box<dyn Devices> {
    match nvml::Driver::open() {
        Ok(driver) => Box::new(driver),
        Err(error) => {
            log::debug!("no accelerator is used: {error}");
            Box::new(NoDevices)
        }
    }
}

/// Returns the accelerators of the running machine: none, for this build knows no driver.
#[cfg(not(feature = "nvml"))]
pub fn system() -> Box<dyn Devices> {
    Box::new(NoDevices)
}
