//! NVIDIA's accelerators, as their driver's library tells. The library is looked for when the program runs.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::{Device, Devices};
use crate::units::Bytes;

/// A driver that answered.
pub(super) struct Driver(Nvml);

impl Driver {
    /// Looks for the driver's library.
    pub(super) fn open() -> Result<Self, NvmlError> {
        Nvml::init().map(Self)
    }

    fn device(&self, index: u32) -> Device {
        let unknown = || Device { name: String::new(), total: None, free: None };
        let read = self.0.device_by_index(index).and_then(|device| {
            let memory = device.memory_info()?;
            Ok(Device {
                name: device.name().unwrap_or_default(),
                total: Some(Bytes::new(memory.total)),
                free: Some(Bytes::new(memory.free)),
            })
        });
        read.unwrap_or_else(|error| {
            log::debug!("accelerator {index} does not tell its memory: {error}");
            unknown()
        })
    }
}

impl Devices for Driver {
    fn read(&self) -> Vec<Device> {
        let count = self.0.device_count().unwrap_or_else(|error| {
            log::debug!("the driver does not tell its accelerators: {error}");
            0
        });
        (0..count).map(|index| self.device(index)).collect()
    }
}
