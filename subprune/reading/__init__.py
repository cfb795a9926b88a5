"""What people have on disk, as inputs: arrays, folders of images, texts and tables of them."""
