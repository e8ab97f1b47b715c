"""Table 3 of the paper: superpixels of Corel images."""
